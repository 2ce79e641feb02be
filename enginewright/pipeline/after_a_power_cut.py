"""Remove what a power cut has left empty or cut off in DVC's cache.

What stages write is forced to disk. DVC's copies in its cache are not, and it believes that they are what their names
say: it would restore an empty one as a result, and call it up to date."""

import hashlib
import re
from pathlib import Path

from dvc.config import Config

from enginewright.core.files import new_file
from enginewright.pipeline.after_a_kill import find_tmp

BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux has another one each time that it starts
CHECKED = "enginewright-boot"  # in DVC's folder for temporary files: the start since which nothing can have been lost
OBJECTS = "files/md5"
NAME = re.compile(r"[0-9a-f]{32}(\.dir)?")


def mend_after_a_power_cut(root: Path) -> list[str]:
    """Return what was mended, a sentence. Copies are checked once after each start of the machine, by their hashes:
    those that are younger than the run which began first after the start before."""
    tmp = find_tmp(root)
    if tmp is None or not BOOT.exists():
        return []
    checked, boot = tmp / CHECKED, BOOT.read_text(encoding="utf-8")
    if checked.is_file() and checked.read_text(encoding="utf-8", errors="replace") == boot:
        return []
    since = checked.stat().st_mtime if checked.is_file() else 0.0
    cache = Path(Config(str(tmp.parent))["cache"].get("dir") or tmp.parent / "cache")
    young = [path for path in cache.glob(f"{OBJECTS}/??/*") if path.stat().st_mtime >= since]
    broken = [path for path in young if NAME.fullmatch(named := path.parent.name + path.name) and not _is(path, named)]
    for path in broken:
        path.unlink()
    with new_file(checked) as temporary:
        temporary.write_text(boot, encoding="utf-8")
    lost = f"{len(broken)} files of DVC's cache were cut off when the machine stopped, and are removed"
    return [f"{lost}: what they held is made again when it is needed"] if broken else []


def _is(path: Path, named: str) -> bool:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == named[:32]
