"""Mend what DVC leaves when it is killed while it writes one of its own files.

DVC writes these files in place. Cut off, they stop every further run until somebody deletes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from dvc.lock import LockError, make_lock
from dvc.rwlock import RWLOCK_FILE, RWLOCK_LOCK, SCHEMA
from dvc.schema import COMPILED_LOCKFILE_SCHEMA
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from voluptuous import Invalid

from enginewright.core.errors import UNREADABLE

TMP = Path(".dvc/tmp")
CONFLICT = "<<<<<<< "  # git's mark between two versions
LOCKS = (Path("dvc.lock"), Path("machine/dvc.lock"))  # what stages had and made, not locks in the sense of TMP's


def mend_after_a_kill(root: Path) -> list[str]:
    """Return what was mended, a sentence each. If another DVC is at work, its files are left alone."""
    tmp = find_tmp(root)
    if tmp is None:
        return []
    mended: list[str] = []
    for guard, mend, where in (("lock", _mend_lock_files, root), (RWLOCK_LOCK, _mend_locked_paths, tmp)):
        try:
            with make_lock(str(tmp / guard), tmp_dir=str(tmp)):
                mended += mend(where)
        except LockError:
            continue
    return mended


def find_tmp(root: Path) -> Path | None:
    """Return DVC's folder for temporary files, or None before the first run. A project may be a folder of a larger
    repository, whose root has it."""
    folder = root.resolve()
    return next((each / TMP for each in (folder, *folder.parents) if (each / TMP).is_dir()), None)


def _mend_lock_files(root: Path) -> list[str]:
    """Remove a lock file that cannot be read. DVC finds the results that it told of in its cache, by what they were
    made from, and does not compute them again."""
    broken = [path for path in LOCKS if (root / path).exists() and not _is_whole(root / path, _read_lock_file)]
    for path in broken:
        (root / path).unlink()
    what = "was cut off when DVC was killed, and is removed: results are restored from the cache"
    return [f"{path} {what}" for path in broken]


def _mend_locked_paths(tmp: Path) -> list[str]:
    """Remove the list of paths that are in use if it cannot be read, or if one who used them is gone. DVC asks only
    whether there is a process of the same number, which soon is another one, above all in a container."""
    path = tmp / RWLOCK_FILE
    if not path.exists():
        return []
    if not _is_whole(path, _read_locked_paths):
        path.unlink()
        return [f"{TMP / RWLOCK_FILE} was cut off when DVC was killed, and is removed"]
    users = _users(_read_locked_paths(path))
    if users and not any(map(_is_running, users)):
        path.unlink()
        return [f"{TMP / RWLOCK_FILE} named a DVC that was killed, and is removed"]
    return []


def _is_whole(path: Path, read: Callable[[Path], Any]) -> bool:
    try:
        read(path)
    except (YAMLError, Invalid, *UNREADABLE):  # not OSError: what may not be read must not be removed
        return False
    return True


def _read_lock_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if CONFLICT not in text:  # of which DVC itself tells
        COMPILED_LOCKFILE_SCHEMA(YAML(typ="safe").load(text))


def _read_locked_paths(path: Path) -> dict[str, Any]:
    return SCHEMA(json.loads(path.read_text(encoding="utf-8")))  # type: ignore[no-any-return]


def _users(locked: dict[str, Any]) -> list[dict[str, Any]]:
    return [*locked["write"].values(), *(user for users in locked["read"].values() for user in users)]


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
