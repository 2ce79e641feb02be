"""Mend what DVC leaves when it is killed, and what a power cut leaves of its cache. This needs DVC's private modules:
it is for the version in DVC, and a test tells when DVC no longer needs it.

DVC writes its own files in place. Cut off, they stop every further run until somebody deletes them. Copies in its cache
are not forced to disk, and it believes that they are what their names say: after a power cut it would restore an empty
one as a result, and call it up to date.
"""

import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from dvc.config import Config
from dvc.lock import LockError, make_lock
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, SCHEMA
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from voluptuous import Invalid

from enginewright.core.errors import UNREADABLE
from enginewright.core.files import write_text

DVC = "3.67.1"
TMP = Path(".dvc/tmp")
LOCKS = (Path("dvc.lock"), Path("machine/dvc.lock"))  # what stages had and made, not locks in the sense of TMP's
BOOT = Path("/proc/sys/kernel/random/boot_id")  # Linux has another one each time that it starts
CHECKED = "enginewright-boot"  # in DVC's folder for temporary files: the start since which nothing can have been lost
OBJECTS = "files/md5"


def mend_after_a_kill(root: Path) -> list[str]:
    """Return what was mended, a sentence each. If another DVC is at work, its files are left alone."""
    mended: list[str] = []
    if tmp := _find_tmp(root):
        for guard, mend, where in (("lock", _mend_lock_files, root), (RWLOCK_LOCK, _mend_locked_paths, tmp)):
            with suppress(LockError), make_lock(str(tmp / guard), tmp_dir=str(tmp)):
                mended += mend(where)
    return mended


def _find_tmp(root: Path) -> Path | None:
    """Return DVC's folder for temporary files, or None before the first run. A project may be a folder of a larger
    repository, whose root has it."""
    folder = root.resolve()
    return next((each / TMP for each in (folder, *folder.parents) if (each / TMP).is_dir()), None)


def _mend_lock_files(root: Path) -> list[str]:
    """Remove a lock file that cannot be read. DVC finds the results that it told of in its cache, by what they were
    made from, and does not compute them again."""
    broken = []
    for path in (path for path in LOCKS if (root / path).exists()):
        try:
            text = (root / path).read_text(encoding="utf-8")
            if "<<<<<<< " not in text:  # git's mark between two versions, of which DVC itself tells
                COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(text))
        except (YAMLError, Invalid, *UNREADABLE):
            broken.append(path)
            (root / path).unlink()
    what = "was cut off when DVC was killed, and is removed: results are restored from the cache"
    return [f"{path} {what}" for path in broken]


def _mend_locked_paths(tmp: Path) -> list[str]:
    """Remove the list of paths that are in use if it cannot be read, or if one who used them is gone. DVC asks only
    whether there is a process of the same number, which soon is another one, above all in a container."""
    path, why = tmp / RWLOCK_FILE, "was cut off when DVC was killed"
    if not path.exists():
        return []
    with suppress(Invalid, *UNREADABLE):
        locked = SCHEMA(json.loads(path.read_text(encoding="utf-8")))
        users = [*locked["write"].values(), *(user for users in locked["read"].values() for user in users)]
        if not users or any(map(_is_running, users)):
            return []
        why = "named a DVC that was killed"
    path.unlink()
    return [f"{TMP / RWLOCK_FILE} {why}, and is removed"]


def _is_running(user: dict[str, Any]) -> bool:
    """Tell whether the process of that number is still the one that was called so. The name of the program is left out,
    since `dvc` and `python -m dvc` are written in several ways."""
    _, _, arguments = user["cmd"].partition(" ")
    try:
        return " ".join(psutil.Process(user["pid"]).cmdline()).endswith(arguments)
    except (psutil.NoSuchProcess, ValueError, OverflowError):  # or no number that a process can have
        return False
    except psutil.AccessDenied:
        return True


def mend_after_a_power_cut(root: Path) -> list[str]:
    """Return what was mended, a sentence. Copies are checked once after each start of the machine, by their hashes:
    those that are younger than the run which began first after the start before."""
    tmp = _find_tmp(root)
    if tmp is None or not BOOT.exists():
        return []
    checked, boot = tmp / CHECKED, BOOT.read_text(encoding="utf-8")
    if checked.is_file() and checked.read_text(encoding="utf-8", errors="replace") == boot:
        return []
    since = checked.stat().st_mtime if checked.is_file() else 0.0
    cache = Path(Config(str(tmp.parent))["cache"].get("dir") or tmp.parent / "cache")
    young = (path for path in cache.glob(f"{OBJECTS}/??/*") if path.stat().st_mtime >= since)
    broken = [path for path in young if _is_cut_off(path)]
    for path in broken:
        path.unlink()
    write_text(checked, boot)
    lost = f"{len(broken)} files of DVC's cache were cut off when the machine stopped, and are removed"
    return [f"{lost}: what they held is made again when it is needed"] if broken else []


def _is_cut_off(path: Path) -> bool:
    """Tell whether a file of the cache is not what its name says. Other files lie there, too."""
    name = path.parent.name + path.name
    if not re.fullmatch(r"[0-9a-f]{32}(\.dir)?", name):
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() != name[:32]
