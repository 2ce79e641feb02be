"""The user's own code: what it is made of, and what it says when it fails."""

import importlib.util
import traceback
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.files import sha256

INSTALLED = ("site-packages", "dist-packages")
SHOWN = 3  # frames of a traceback


def fingerprint(source: str) -> dict[str, str]:
    """The hashes of all Python files that `package.module:factory` may come from: new code, new run."""
    package = source.partition(":")[0].partition(".")[0]
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        found = None
    if found is None or not (found.origin or found.submodule_search_locations):
        raise EngineryError(
            f"model.source: there is no module '{package}' in {Path.cwd()} nor among the installed packages"
        )
    folders = [Path(folder) for folder in found.submodule_search_locations or []]
    if not folders:
        return {Path(str(found.origin)).name: sha256(Path(str(found.origin)))}
    files = {file.relative_to(folder.parent).as_posix(): file for folder in folders for file in folder.rglob("*.py")}
    return {name: sha256(files[name]) for name in sorted(files)}


def users_part(error: BaseException) -> str:
    """The error, and the places in the user's own files that led there; of ours and of libraries none."""
    first_line = str(error).strip().partition("\n")[0]
    said = f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename:
        return f"{said} ({error.filename}, line {error.lineno})"
    here = Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if here not in Path(frame.filename).parents
        and not frame.filename.startswith("<")
        and not any(part in INSTALLED or part.startswith("python3") for part in Path(frame.filename).parts)
    ]
    places = [f"\n  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames[-SHOWN:]]
    return said + "".join(places)
