"""Run the pipeline twice at once: in one clone, and in two that share caches and the machine.

`make torture` runs this: `python tests/torture/two.py`. In one clone a second run, and a night, must say who is at
work, and the first must end as if alone. Of two clones both must end, with the same bytes of what does not depend on
time.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.committed_project import differing, results, tortured_project


def start(root: Path, log: str, *command: str) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(root), "XDG_CACHE_HOME": str(root.parent / "cache")}
    path = f"{root / '.venv/bin'}{os.pathsep}{environment['PATH']}"
    with (root / log).open("wb") as file:
        return subprocess.Popen(command, cwd=root, env=environment | {"PATH": path}, stdout=file, stderr=file)


def in_one_clone(root: Path) -> None:
    """Start a second run and a night while the first run is at work: both must say why they do not run."""
    first = start(root, "first.log", "dvc", "repro")
    while first.poll() is None and not list((root / "artifacts").glob("samples*")):
        time.sleep(0.2)
    others = {"second": ("dvc", "repro"), "night": ("make", "nightly")}
    beside = {name: start(root, f"{name}.log", *command) for name, command in others.items()}
    codes = first.wait(), *(each.wait() for each in beside.values())
    said = {name: (root / f"{name}.log").read_text() for name in others}
    for name, code in zip(others, codes[1:], strict=True):
        print(f"two in one clone: exit codes {codes[0]} and {code}; the {name} said:\n  {said[name].strip()[-600:]}")
    if codes[0] or any("Traceback" in each for each in said.values()):
        sys.exit("the first run failed:\n" + (root / "first.log").read_text()[-2000:])
    if start(root, "again.log", "dvc", "repro").wait():
        sys.exit("a later run failed:\n" + (root / "again.log").read_text()[-2000:])


def in_two_clones(roots: list[Path], shared: Path) -> None:
    for root in roots:
        subprocess.run(["dvc", "cache", "dir", "--local", str(shared)], cwd=root, check=True)
    started = [start(root, "run.log", "dvc", "repro") for root in roots]
    codes = [each.wait() for each in started]
    logs = [(root / "run.log").read_text() for root in roots]
    waits = [line for log in logs for line in log.splitlines() if "wait" in line.lower()]
    print(f"two clones: exit codes {codes}; waits: {len(waits)}, such as {waits[0] if waits else '-'}")
    if any(codes):
        sys.exit("\n".join(log[-1500:] for log in logs))
    if others := differing(*map(results, roots)):
        sys.exit(f"other bytes in the second clone: {others}")
    print(f"{len(results(roots[0]))} outputs are the same to the byte in both clones")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", action="store_true", help="only in one clone")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="two-") as folder:
        if chosen.one:
            return in_one_clone(tortured_project(Path(folder) / "third"))
        roots = [tortured_project(Path(folder) / name) for name in ("one", "other")]
        in_two_clones(roots, Path(folder) / "dvc-cache")
        in_one_clone(tortured_project(Path(folder) / "third"))


if __name__ == "__main__":
    main()
