"""Let one race at a time have the machine: two would slow each other, and both timings would be wrong."""

import fcntl
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginewright.core.text import printable

NAME = "enginewright-timing.lock"  # the same for all users and projects of the machine


@contextmanager
def whole_machine(who: str) -> Iterator[None]:
    """Wait until nothing else of Enginewright is timed on this machine. The lock ends with the
    process, however it ends."""
    descriptor = _opened(Path(tempfile.gettempdir()) / NAME)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = printable(os.pread(descriptor, 1000, 0).decode(errors="replace")) or "another process"
            print(f"{who} waits until {other} has timed its engines on this machine", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} in {Path.cwd()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _opened(path: Path) -> int:
    """Open the file, or make it for all users. Linux refuses O_CREAT for a file of another user in /tmp."""
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask says
        return descriptor
