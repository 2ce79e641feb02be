"""Fill the disk, and take the memory, while each stage runs in turn: a sentence says so, and the next run goes on.

`make torture` runs this: `python tests/torture/starved.py`. The project lies on a small file system of its own, which
is full while the stage runs; the kernel ends the stage when it takes more memory than its control group may.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from ruamel.yaml import YAML

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.checkout import Project as Settings
from support.committed_project import differing, left_in_tmpdir, results, tortured_project

ALONE = ("unshare", "--map-root-user", "--mount")
SIZE = "2g"  # of the file system, whose files are in memory
MEMORY = 80 * 2**20  # bytes that a stage may take, which its libraries alone exceed
GROUPS = {"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"}  # of versions 1 and 2
THRESHOLDS = {"cosine": 0, "relative_error": 10, "agreement": 0, "metric_drop": 1}
MIXED = {  # so that there is every stage of dvc.yaml
    "mix": {"best": {"floating": "fp32", "seconds": 0.05, "traces": None}},
    "precisions.best": {"from": "mixed", "keep": {"op_types": [], "nodes": []}, "thresholds": THRESHOLDS},
}
Prefix = tuple[str, ...]  # of the command
Starved = Callable[[Path], AbstractContextManager[Prefix]]


@contextmanager
def full_disk(root: Path) -> Iterator[Prefix]:
    ballast, free = root.parent / "ballast", os.statvfs(root)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_bsize)
    try:
        yield ()
    finally:
        ballast.unlink()


@contextmanager
def little_memory(root: Path) -> Iterator[Prefix]:
    group, limit = next((Path(place), name) for place, name in GROUPS.items() if Path(place, "cgroup.procs").exists())
    group /= "enginewright-starved"
    group.mkdir()
    try:
        (group / limit).write_text(str(MEMORY))
        yield "sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"
    finally:
        group.rmdir()


CASES: dict[str, tuple[Starved, str]] = {
    "a full disk": (full_disk, "No space left on device"),
    "little memory": (little_memory, "as the system does when memory runs out"),
}


class Project:
    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("tmp", "cache"):
            (root.parent / name).mkdir()
        self._environment = os.environ | {
            "PYTHONPATH": str(root),
            "PATH": f"{root / '.venv/bin'}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(root.parent / "tmp"),
            "XDG_CACHE_HOME": str(root.parent / "cache"),
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, cwd=self.root, env=self._environment, capture_output=True, text=True)

    def repro(self) -> None:
        done = self.run("make", "repro")
        if done.returncode:
            sys.exit(f"the next run failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def stages(self) -> dict[str, tuple[str, list[str]]]:
        """Return the command and the outputs of each stage, as DVC has noted them."""
        found = {}
        for lock in ("machine/dvc.lock", "dvc.lock"):
            for name, stage in YAML(typ="safe").load(self.root / lock)["stages"].items():
                found[name] = stage["cmd"], [out["path"] for out in stage.get("outs", [])]
        return found

    def forget(self, outs: list[str]) -> None:
        """Remove a stage's outputs, as DVC does before it runs the stage."""
        for path in (self.root / out for out in outs):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def starve(project: Project, command: str, outs: list[str], case: str) -> str | None:
    """Run a stage that must fail with one line, and then as usual. Return what is wrong."""
    starved, expected = CASES[case]
    project.forget(outs)
    with starved(project.root) as before:
        done = project.run(*before, "sh", "-c", f"exec {command}")
    again = project.run("sh", "-c", f"exec {command}")
    if again.returncode:
        return f"the next run failed:\n{again.stderr[-2000:]}"
    said = done.stderr.strip().splitlines()
    if done.returncode == 0 and (case != "a full disk" or not outs):
        return None  # it needs less, or writes nothing
    sentence = said[-1] if said else ""
    if done.returncode != 1 or "Traceback" in done.stderr or expected not in sentence:
        return f"exit code {done.returncode}, and it said:\n{done.stderr[-3000:]}"
    print(f"    {sentence[:150]}", flush=True)
    return None


def inside(only: list[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="starved-") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "none", folder], check=True)
        try:
            project = Project(tortured_project(Path(folder) / "project"))
            Settings(project.root).set(**MIXED)
            project.repro()
            wanted, wrong = results(project.root), []
            for stage, (command, outs) in project.stages().items():
                for case in CASES if not only or {stage, stage.split("@")[0]} & set(only) else ():
                    failed = starve(project, command, outs, case)
                    wrong += [f"{stage}, {case}: {failed}"] if failed else []
                    print(f"{stage}, {case}: {'WRONG' if failed else 'the next run ended well'}", flush=True)
            with full_disk(project.root):
                project.run("make", "repro")  # DVC itself stumbles
            project.repro()
            others = differing(wanted, results(project.root))
            print(f"other bytes: {others}" if others else f"{len(wanted)} outputs are the same to the byte")
            wrong += others
            left = left_in_tmpdir(project.root.parent / "tmp")
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    sys.exit("\n".join([*wrong, *(f"left behind: {path}" for path in left)]) or 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="only these stages")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.inside:
        inside(chosen.only)
    command = [sys.executable, __file__, "--inside", "--only", *chosen.only]
    sys.exit(subprocess.run([*ALONE, *command]).returncode)


if __name__ == "__main__":
    main()
