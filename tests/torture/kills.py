"""Kill the pipeline at random moments, start it again, and see that it ends as if nothing had happened.

`make torture` runs this: `python tests/torture/kills.py --kills 300 --seed 1`. It works in a temporary folder, prints
a line for each ten kills, and a table at the end; it fails if a last, undisturbed run does, or if a result differs.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.committed_project import differing, left_in_tmpdir, results, tortured_project

WRITTEN_IN_PLACE = ("dvc.lock", "machine/dvc.lock", ".dvc/tmp/rwlock")
COMMANDS = {
    "repro": ("make", "repro"),
    "nightly": ("make", "nightly"),
    "bundle": (sys.executable, "-m", "enginewright.cli", "bundle", "int8", "--out", "bundle"),
    "compare": (sys.executable, "-m", "enginewright.cli", "compare", "reports", "reports", "--race"),
}
RUN_DVC = ("repro", "nightly")  # the others write none of its files
LONGEST = 20.0  # seconds before a kill, of a run that takes longer
NOT_COMPARABLE = 4  # what `enginewright compare` ends with on a machine that is too noisy
SHELLS = ("sh", "dash", "bash")


class Torture:
    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.random = root, random.Random(seed)
        self.victims: Counter[str] = Counter()
        self.ended = 0  # runs that were done before they were killed
        self.temporary = root.parent / "tmp"
        self.temporary.mkdir()

    def start(self, command: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"PYTHONPATH": str(self.root), "TMPDIR": str(self.temporary)}
        with (self.root / "make.log").open("ab") as log:
            return subprocess.Popen(
                COMMANDS[command], cwd=self.root, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def seconds(self, command: str) -> float:
        """Return how long an undisturbed run takes here: on a fast machine it is soon done."""
        begun = time.monotonic()
        self.start(command).wait()
        return time.monotonic() - begun

    def kill_once(self, command: str, longest: float) -> None:
        """Start the pipeline, and kill one of its processes, or all, after a while or while DVC writes a file."""
        started = self.start(command)
        process = psutil.Process(started.pid)
        how = self.random.choice(["all", "one", "writing"] if command in RUN_DVC else ["all", "one"])
        time.sleep(self.random.uniform(0, longest))
        if how == "writing":
            self._wait_for_a_write(started, longest)
        if started.poll() is not None:
            self.ended += 1
            if command in RUN_DVC:
                self.start_over()
            return
        family = [process, *process.children(recursive=True)]
        victims = [self.random.choice(family)] if how == "one" else family
        self.victims[_name(victims[0]) if how == "one" else f"all, {how}"] += 1
        started_by_make = [process, *(child for child in process.children() if child.name() in SHELLS)]
        _kill(victims)
        if how == "one" and victims[0] in started_by_make:
            _kill(family)  # without `make` and its shell, what they started goes on, as it should: nobody waits for it
        started.wait()
        _wait_until_gone(family)

    def _wait_for_a_write(self, started: subprocess.Popen[bytes], longest: float) -> None:
        """Wait until a file that DVC writes in place is empty, which lasts for less than a millisecond."""
        files, end = [self.root / name for name in WRITTEN_IN_PLACE], time.monotonic() + longest
        while started.poll() is None and time.monotonic() < end:
            for file in files:
                with suppress(FileNotFoundError):
                    if file.stat().st_size == 0:
                        return

    def start_over(self) -> None:
        """Forget all results, and every other time also DVC's cache: then they are made, and else restored."""
        for name in ("artifacts", "reports"):
            shutil.rmtree(self.root / name, ignore_errors=True)
        if self.random.random() < 0.5:
            shutil.rmtree(self.root / ".dvc/cache", ignore_errors=True)
            (self.root / "dvc.lock").unlink(missing_ok=True)

    def finish(self, command: str) -> None:
        """Run undisturbed, which must need no help."""
        if self.start(command).wait() not in (0, NOT_COMPARABLE):
            sys.exit("the last run failed:\n" + (self.root / "make.log").read_text()[-2000:])

    def leftovers(self) -> list[str]:
        folders = [self.root / name for name in ("artifacts", "reports", "history", "bundle")]
        left = [*self.root.glob(".*.tmp"), *(path for folder in folders for path in folder.rglob(".*.tmp"))]
        return [str(path.relative_to(self.root.parent)) for path in (*left, *left_in_tmpdir(self.temporary))]


def _name(process: psutil.Process) -> str:
    words = process.cmdline()
    if "stages" in words:
        return f"stage {words[words.index('stages') + 1]}"
    return next((name for name in ("dvc", "nightly", "make") if any(name in word for word in words)), process.name())


def _kill(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _wait_until_gone(family: list[psutil.Process]) -> None:
    """Wait for what was not killed itself: it must end with its parent, or by itself."""
    _, alive = psutil.wait_procs(family, timeout=60)
    if alive:
        sys.exit(f"still running a minute after the kill: {[process.cmdline() for process in alive]}")


def torture(project: Torture, command: str, kills: int) -> list[str]:
    """Kill a command again and again, and return what is wrong after a last, undisturbed run."""
    project.victims.clear()
    project.ended = 0
    wanted = results(project.root)
    if command in RUN_DVC:
        project.start_over()
    longest = min(project.seconds(command), LONGEST)
    print(f"{command}: killed within {longest:.1f} s", flush=True)
    if command in RUN_DVC:
        project.start_over()
    for number in range(1, kills + 1):
        project.kill_once(command, longest)
        if number % 10 == 0:
            print(f"{number} kills, {project.ended} runs were done before", flush=True)
    project.finish("repro")
    if command != "nightly":  # a night ends red if the machine has become slower
        project.finish(command)
    others, left = differing(wanted, results(project.root)), project.leftovers()
    print(f"\nkilled, of {kills} ({command}):")
    for name, count in project.victims.most_common():
        print(f"  {count:4} {name}")
    print(f"  {project.ended:4} runs were done before")
    print(f"{len(wanted)} outputs are the same to the byte" if not others else f"other bytes: {others}", flush=True)
    return [f"{command}: other bytes: {others}"] * bool(others) + [f"{command}: left behind: {left}"] * bool(left)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="of each command")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--command", choices=COMMANDS, nargs="+", default=["repro"])
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        project = Torture(tortured_project(Path(folder) / "project", "LICENSE"), chosen.seed)
        project.finish("repro")
        wrong = [each for command in chosen.command for each in torture(project, command, chosen.kills)]
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
