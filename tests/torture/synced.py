"""Run the pipeline and a night under strace, and see that a power cut leaves no half-written file under a final name.

`make torture` runs this: `python tests/torture/synced.py`. A power cut loses what was not forced to disk. So each file
that gets its final name by a rename must have been forced to disk after its last write. DVC forces
nothing. So all that it wrote is emptied in the end: its notes of runs and its locks. Its copies of results are deleted,
as docs/explanation/reliability.md says. The next run must succeed, and with the same bytes.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.committed_project import differing, results, tortured_project

CALLS = "write,pwrite64,writev,copy_file_range,sendfile,fsync,fdatasync,rename,renameat,renameat2"
COMMANDS = {
    "repro": ("make", "repro"),
    "nightly": (
        sys.executable,
        "-m",
        "enginewright.nightly",
        "--attempts",
        "0",
    ),  # the first: it has no rival
}
NOT_COMPARABLE = 4  # what a night ends with on a machine that is too noisy
FILE = re.compile(r"^\d+ +(\w+)\((?:\d+<([^>]*)>)?")
COPIED_TO = re.compile(r"copy_file_range\(\d+<[^>]*>, [^,]+, \d+<([^>]*)>")
NAMES = re.compile(r"\"([^\"]*)\"")
OURS = re.compile(r"/\.[^/]+\.[0-9a-f]{8}\.tmp$")  # as enginewright/core/files.py calls what is not whole yet


def unsynced(lines: Iterable[str], root: Path) -> Iterator[str | None]:
    """Yield each file that a rename of ours gives its final name: None if it was forced to disk, else its name."""
    written: dict[str, bool] = {}  # by path: whether it was forced to disk since
    for line in lines:
        if not (found := FILE.match(line)) or " = -1 " in line:
            continue
        call, path = found.groups()
        if call.startswith("rename"):
            old, new = (name if name.startswith("/") else f"{root}/{name}" for name in NAMES.findall(line)[:2])
            moved = {name: written.pop(name) for name in list(written) if name == old or name.startswith(f"{old}/")}
            for name, synced in moved.items():
                final = new + name.removeprefix(old)
                written[final] = synced
                if OURS.search(old) and not OURS.search(new):
                    yield None if synced else final.removeprefix(f"{root}/")
        elif path:
            if call == "copy_file_range":  # its first file is the one that is read
                path = copied[1] if (copied := COPIED_TO.search(line)) else path
            written[path] = call in ("fsync", "fdatasync")


def lose_what_dvc_wrote(root: Path) -> None:
    """Empty each file of DVC, as the worst power cut does, and delete its cache: docs/explanation/reliability.md."""
    shutil.rmtree(root / ".dvc/cache")
    for file in (root / ".dvc/tmp").rglob("*"):
        if file.is_file():
            os.truncate(file, 0)
    for lock in ("dvc.lock", "machine/dvc.lock"):
        os.truncate(root / lock, 0)


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    if not shutil.which("strace"):
        sys.exit("this needs strace: install it")
    with tempfile.TemporaryDirectory(prefix="synced-") as folder:
        root, log = tortured_project(Path(folder) / "project"), Path(folder) / "calls"
        trace = ["strace", "-f", "-y", "-qq", "-s", "0", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(log)]
        environment, found = os.environ | {"PYTHONPATH": str(root)}, list[str | None]()
        for name, command in COMMANDS.items():
            done = subprocess.run([*trace, *command], cwd=root, env=environment, capture_output=True, text=True)
            if done.returncode not in (0, NOT_COMPARABLE):
                sys.exit(done.stdout[-2000:] + done.stderr[-2000:])
            with log.open(errors="replace") as lines:
                found += unsynced(lines, root)
            print(f"{name}: {len(found)} files have got their final names", flush=True)
        wanted = results(root)
        lose_what_dvc_wrote(root)
        done = subprocess.run(["make", "repro"], cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode or (others := differing(wanted, results(root))):
            sys.exit(f"after the loss: other bytes: {others}" if not done.returncode else done.stdout + done.stderr)
        print(f"after the loss of all that DVC wrote, {len(wanted)} outputs are the same to the byte; it said:")
        print("\n".join(line for line in done.stderr.splitlines() if "removed" in line))
    left = [name for name in found if name]
    print(f"{len(found)} files got their final names; {len(left)} of them were not forced to disk before")
    sys.exit("\n".join(left) if left or not found else 0)


if __name__ == "__main__":
    main()
