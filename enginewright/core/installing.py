"""How Enginewright is installed, and in which version. It is on no index, where anybody could take its name: no command
installs it by its name alone. This file imports only Python's own library, as `enginewright doctor` uses it."""

import importlib.metadata
import json
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from enginewright import __version__
from enginewright.core.errors import EnginewrightError

if TYPE_CHECKING:
    from packaging.version import Version

NAME = "enginewright"
UNKNOWN = "git+ADDRESS"  # which the reader has to fill in
VERSION_FILE = Path(".enginewright/version")  # not there in a clone of Enginewright, a project of its own version
ROOT = Path(__file__).resolve().parents[2]
OLD_NAME, OLD_FOLDER = "enginery", Path(".enginery")  # until 0.3; the package of this name is another one's
NAMED_IN = ("dvc.yaml", "machine/dvc.yaml", "Makefile", "requirements.txt", ".github/workflows/enginery.yml")


def requirement(extra: str) -> str:
    """Return what pip and a file of requirements take: the package with an extra, from where this one is from."""
    found = _installed_from()
    address = found.get("url", UNKNOWN)
    if vcs := found.get("vcs_info"):
        address = f"{vcs['vcs']}+{address}@{vcs['commit_id']}"
    if folder := found.get("subdirectory"):
        address += f"#subdirectory={folder}"
    return f"{NAME}[{extra}] @ {address}"


def how_to_install(extra: str) -> str:
    """Return a command for this machine."""
    found = _installed_from()
    if found.get("dir_info", {}).get("editable"):
        return f"pip install -e '{unquote(urlparse(found['url']).path)}[{extra}]'"
    return f"pip install '{requirement(extra)}'"


def elsewhere(extra: str) -> str:
    """Return the requirement for another machine, which has no folder of this one, but a project with the wheel."""
    if found := wheel():
        return f"./{VERSION_FILE.parent / found.name}[{extra}]"
    return f"{NAME}[{extra}] @ {UNKNOWN}" if "file://" in requirement(extra) else requirement(extra)


def wheel() -> Path | None:
    """Return the file that this one was installed from, if it is one that is still there."""
    address = urlparse(_installed_from().get("url", ""))
    path = Path(unquote(address.path))
    return path if address.scheme == "file" and path.suffix == ".whl" and path.is_file() else None


def _installed_from() -> dict[str, Any]:
    """Return what pip has noted (PEP 610), or the clone that Python imports from."""
    try:
        noted = importlib.metadata.distribution(NAME).read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        noted = None
    if noted:
        found: dict[str, Any] = json.loads(noted)
        return found
    is_clone = (ROOT / "pyproject.toml").is_file()
    return {"url": ROOT.as_uri(), "dir_info": {"editable": True}} if is_clone else {}


def old_name_hint(folder: Path = Path()) -> str | None:
    """Say what to change where a project has the name that Enginewright had, which is that of another package."""
    files = [folder / name for name in NAMED_IN if (folder / name).is_file()]
    named = [file for file in files if OLD_NAME in file.read_text(encoding="utf-8", errors="replace")]
    if not named and not (folder / OLD_FOLDER).is_dir():
        return None
    where = f", and write {NAME} for {OLD_NAME} in {', '.join(map(str, named))}, as far as it has not" if named else ""
    return f"Enginewright was called {OLD_NAME}, which is another package now: run `enginewright upgrade`{where}"


def version_of_project(folder: Path = Path()) -> "Version | None":
    """Return the version that a project was laid out with, or None if `enginewright new` did not lay it out."""
    from packaging.version import InvalidVersion, Version

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
    if made_with and made_with > type(made_with)(__version__):
        raise EnginewrightError(
            f"this project is of enginewright {made_with}, and {__version__} is installed: "
            f"{how_to_install('pipeline')}, of a later version"
        )


def upgrade_hint(folder: Path = Path()) -> str | None:
    made_with = version_of_project(folder)
    if made_with and made_with < type(made_with)(__version__):
        installed = f"this project is of enginewright {made_with}, and {__version__} is installed"
        return f"{installed}: `enginewright upgrade` renews it"
    return None


WRITTEN_BY_A_RUN = (":!reports", ":!history", ":!dvc.lock", ":!machine/dvc.lock")


def revision() -> str:
    """Return the git revision of the code, with `-dirty` if files differ from it that a run does not write itself."""
    found = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        raise EnginewrightError(
            f"measurements are kept with their git revision: commit the project to git first ({found.stderr.strip()})"
        )
    changed = subprocess.run(["git", "diff", "--quiet", "HEAD", "--", ".", *WRITTEN_BY_A_RUN]).returncode
    return found.stdout.strip() + ("-dirty" if changed else "")


def installed_version(*distributions: str) -> str | None:
    """Return the version of the first of these distributions that is installed."""
    for name in distributions:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
