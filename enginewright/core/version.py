"""The version that is installed, and the one that a project was laid out with."""

import importlib.metadata
import subprocess
from contextlib import suppress
from pathlib import Path

from packaging.version import InvalidVersion, Version

from enginewright import __version__
from enginewright.core.errors import EnginewrightError
from enginewright.core.installing import OLD_FOLDER, how_to_install

VERSION_FILE = Path(".enginewright/version")  # not there in a clone of Enginewright, a project of its own version


def version_of_project(folder: Path = Path()) -> Version | None:
    """Return None if `enginewright new` did not lay the project out."""
    file = next((folder / each for each in (VERSION_FILE, OLD_FOLDER / "version") if (folder / each).is_file()), None)
    if file is None:
        return None
    try:
        return Version(file.read_text(errors="replace", encoding="utf-8").strip())
    except InvalidVersion:
        raise EnginewrightError(f"{file} holds no version: take it back from git") from None


def require_new_enough(folder: Path = Path()) -> None:
    """Refuse a project of a later version, whose parameters this one does not know."""
    made_with = version_of_project(folder)
    if made_with and made_with > Version(__version__):
        raise EnginewrightError(
            f"this project is of enginewright {made_with}, and {__version__} is installed: "
            f"{how_to_install('pipeline')}, of a later version"
        )


def upgrade_hint(folder: Path = Path()) -> str | None:
    made_with = version_of_project(folder)
    if made_with and made_with < Version(__version__):
        return (
            f"this project is of enginewright {made_with}, and {__version__} is installed: "
            "`enginewright upgrade` renews it"
        )
    return None


WRITTEN_BY_A_RUN = (":!reports", ":!history", ":!dvc.lock", ":!machine/dvc.lock")


def revision() -> str:
    """Return the git revision of the code, with `-dirty` if files differ from it that a run does not write itself."""
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        raise EnginewrightError(
            f"measurements are kept with their git revision, but git has none: {found.stderr.strip()}"
        )
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", *WRITTEN_BY_A_RUN]).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


def installed_version(*distributions: str) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
