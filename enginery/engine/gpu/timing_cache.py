"""TensorRT's timing cache: what a builder measured of its kernels, so that the next build need not measure again.

It belongs to a machine, not to the pipeline: measured on another GPU, driver or TensorRT it would be wrong.
"""

import fcntl
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from enginery.core.files import new_file


def timing_cache_path(*identity: str) -> Path:
    """One file per identity, such as GPU, driver and TensorRT version."""
    chosen = Path(os.environ.get("XDG_CACHE_HOME") or "")
    home = chosen if chosen.is_absolute() else Path.home() / ".cache"  # a relative one must be ignored, by its standard
    name = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in identity)
    return home / "enginery" / "timing" / f"{name}.cache"


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process at a time reads and writes the cache: two that merge at once would lose one's timings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def read_timing_cache(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def write_timing_cache(path: Path, content: bytes) -> None:
    with new_file(path) as temporary:
        temporary.write_bytes(content)


def set_aside(path: Path) -> None:
    """A damaged cache costs time, not correctness: keep it for a look, and go on without."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    print(f"the timing cache {path} is damaged: moved to {aside.name}, a new one is begun", file=sys.stderr)
