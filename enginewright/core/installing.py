"""Say how Enginewright is installed. It is on no index, where anybody could take its name: never by its name alone."""

import importlib.metadata
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

NAME = "enginewright"
UNKNOWN = "git+ADDRESS"  # which the reader has to fill in
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
    """Return the requirement for another machine, which has no folder of this one."""
    return f"{NAME}[{extra}] @ {UNKNOWN}" if "file://" in requirement(extra) else requirement(extra)


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
