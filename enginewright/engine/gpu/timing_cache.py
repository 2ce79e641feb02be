"""TensorRT's timing cache: what a builder measured of its kernels, so that the next build need not measure it again. It
belongs to a machine and not to the pipeline: the timings of another GPU, driver or TensorRT would be wrong."""

import hashlib
import re
import sys
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from enginewright.core.files import new_file


def timing_cache_path(*identity: str) -> Path:
    """Return the file for an identity, such as GPU, driver and TensorRT version."""
    name = "_".join(re.sub(r"[^A-Za-z0-9.]+", "-", part).strip("-") for part in identity)
    return user_cache_path("enginewright") / "timing" / f"{name}.timings"


def locked(path: Path) -> FileLock:
    """Return a lock that one process at a time can hold: two that merge at once would lose the timings of one."""
    return FileLock(path.with_suffix(".lock"))


def read_timing_cache(path: Path) -> bytes:
    """Return what was written. A damaged file is set aside: TensorRT's reader of it must not see other bytes."""
    if not path.exists():
        return b""
    digest, _, content = path.read_bytes().partition(b"\n")
    if digest != _digest(content):
        set_aside(path)
        return b""
    return content


def write_timing_cache(path: Path, content: bytes) -> None:
    with new_file(path) as temporary:
        temporary.write_bytes(_digest(content) + b"\n" + content)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def set_aside(path: Path) -> None:
    """Rename a damaged cache, so that it can be looked at, and go on without it: that costs time, not correctness."""
    aside = path.with_suffix(".damaged")
    path.replace(aside)
    print(f"the timing cache {path} is damaged: moved to {aside.name}, a new one is begun", file=sys.stderr)
