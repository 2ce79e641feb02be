"""Give folders for temporary files, which are removed at the latest by the next run, however this one ends."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NEW, IN_USE = "enginewright-new-", "enginewright-scratch-"
AT_ONCE = 600  # seconds


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder that is removed when the block ends, or by a later call if this process is killed."""
    _remove_leftovers(Path(tempfile.gettempdir()))
    new = Path(tempfile.mkdtemp(prefix=NEW))
    descriptor = os.open(new, os.O_RDONLY)
    try:
        with suppress(OSError):  # where folders cannot be locked, leftovers stay
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        folder = new.rename(new.with_name(new.name.replace(NEW, IN_USE)))  # others look at it now that it is locked
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)


def _remove_leftovers(root: Path) -> None:
    """Remove the folders that no process holds: the system takes back the lock of one that was killed. A new one is
    not locked yet, and gets its other name at once unless its process was killed just then."""
    for folder in root.glob(f"{NEW}*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > AT_ONCE:
                folder.rmdir()
    for folder in root.glob(f"{IN_USE}*"):
        with suppress(OSError):  # in use, of another user, or just removed
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)
