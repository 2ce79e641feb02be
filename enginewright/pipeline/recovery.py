"""Mend what DVC leaves when it is killed. This needs DVC's private modules: it is for the version in DVC, and a test
tells when DVC no longer needs it. DVC writes its own files in place. Cut off, they stop every further run until
somebody deletes them."""

import json
from contextlib import suppress
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

DVC = "3.67.1"
TMP = Path(".dvc/tmp")
LOCKS = (Path("dvc.lock"), Path("machine/dvc.lock"))  # what stages had and made, not locks in the sense of TMP's


def mend_after_a_kill(root: Path) -> list[str]:
    """Return what was mended, a sentence each. If another DVC is at work, its files are left alone. A project may be a
    folder of a larger repository, whose root has DVC's folder for temporary files."""
    mended, folder = list[str](), root.resolve()
    if tmp := next((each / TMP for each in (folder, *folder.parents) if (each / TMP).is_dir()), None):
        for guard, mend, where in (("lock", _mend_lock_files, root), (RWLOCK_LOCK, _mend_locked_paths, tmp)):
            with suppress(LockError), make_lock(str(tmp / guard), tmp_dir=str(tmp)):
                mended += mend(where)
    return mended


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
