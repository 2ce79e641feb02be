"""Files that are either whole or absent, folders for what is temporary, the paths of results, and the base of each JSON
document that one stage hands to the next."""

import fcntl
import glob
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError

if TYPE_CHECKING:
    from jinja2 import Environment


def sha256(*paths: Path) -> str:
    """Return the hash of what is in the files, one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(1 << 20):  # Python 3.10 lacks hashlib.file_digest
                digest.update(block)
    return digest.hexdigest()


def sha256_of(document: Any) -> str:
    """Return the hash of a JSON-like value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, which takes the name `path` only when the block ends well."""
    temporary = _temporary(path)
    try:
        yield temporary
        _to_disk(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write unless the file already says the same. DVC then sees that what was made from it is up to date."""
    if not path.is_file() or path.read_bytes() != text.encode():
        with new_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Do the same for a folder: an earlier one stays in place until the new one is complete."""
    temporary = _temporary(path)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.rglob("*"):
            if file.is_file():
                _to_disk(file)
        if path.exists():
            retired = path.rename(f"{temporary}.tmp")
            temporary.rename(path)
            shutil.rmtree(retired)
        else:
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    """Return a new name. Remove what a killed run left: DVC runs a stage only once at a time, so none needs it."""
    for stale in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink()
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.with_name(f".{path.name}.{os.urandom(4).hex()}.tmp")


def _to_disk(path: Path) -> None:
    """Force a file to disk: a power cut after the rename could otherwise leave an empty file under the final name."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


# Give folders for temporary files, which are removed at the latest by the next run, however this one ends.

NEW, IN_USE = "enginewright-new-", "enginewright-scratch-"
AT_ONCE = 600  # seconds


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder that is removed when the block ends, or by a later call if this process is killed."""
    _remove_left_folders(Path(tempfile.gettempdir()))
    new = Path(tempfile.mkdtemp(prefix=NEW))
    folder = new.with_name(new.name.replace(NEW, IN_USE))
    with alone_in(new):
        try:
            new.rename(folder)  # others look at it now that it is locked
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Lock a folder, once no other process holds it, under whatever name. Where folders cannot be locked, go on."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_left_folders(root: Path) -> None:
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


# The paths of results that commands read. Stages take theirs from dvc.yaml, and a test keeps the two alike.

ARTIFACTS, REPORTS, HISTORY = Path("artifacts"), Path("reports"), Path("history")
CONVERTED = ARTIFACTS / "converted"
CURES, TUNED = Path("cures"), Path("tuned")  # what is found is kept there, for git
ENGINES = ARTIFACTS / "engines"
MACHINE = ARTIFACTS / "machine.json"
VALIDATION_SAMPLES = ARTIFACTS / "samples" / "validation"
MEASUREMENTS = REPORTS / "measurements.json"
RACE = REPORTS / "race.json"
VERDICT = REPORTS / "verdict.json"
SUMMARY = REPORTS / "summary.md"
LOCK = Path("dvc.lock")


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def write(self, path: Path) -> None:
        write_text(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            return cls.parse(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise EnginewrightError(f"{path} is missing: run `dvc repro` to make it") from None
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}: `dvc repro` makes it again") from None

    @classmethod
    def parse(cls, content: bytes, origin: str) -> Self:
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = " ".join(".".join(str(part) for part in first["loc"]).split())
            wrong = f"{place}: {first['msg']}" if place else first["msg"]
            raise EnginewrightError(f"{origin} is damaged or of another version of Enginewright ({wrong})") from None


@cache  # which keeps the compiled templates, too
def templates_in(*folders: Path, of_pages: bool = False) -> "Environment":
    """Return the templates in folders, of pages or of text files, in which `markdown` writes a table. A name without a
    fact is an error, never an empty place."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folders),
        autoescape=of_pages,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=not of_pages,
    )
    environment.filters["markdown"] = methodcaller("to_markdown", disable_numparse=True)
    return environment
