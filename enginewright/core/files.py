"""Write files that are either whole or absent, and name them by their hashes."""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal, Protocol


class Readable(Protocol):
    def open(self, mode: Literal["rb"]) -> IO[bytes]: ...


def sha256(*paths: Readable) -> str:
    """Return the hash of what is in the files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)  # type: ignore[arg-type]
    return digest.hexdigest()


def sha256_of(document: Any) -> str:
    """Return the hash of a JSON-like value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which takes the name `path` only when the block ends well."""
    _remove_leftovers(path)
    temporary = _temporary(path)
    try:
        yield temporary
        _to_disk(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Do the same for a folder: an earlier one stays in place until the new one is complete."""
    _remove_leftovers(path)
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _to_disk(file)
        if path.exists():
            retired = _temporary(path)
            path.rename(retired)
            temporary.rename(path)
            shutil.rmtree(retired)
        else:
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")


def _remove_leftovers(path: Path) -> None:
    """Remove what a killed run left: no other run needs it, because DVC runs a stage only once at a time."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink()


def _to_disk(path: Path) -> None:
    """Force a file to disk: a power cut after the rename could otherwise leave an empty file under the final name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
