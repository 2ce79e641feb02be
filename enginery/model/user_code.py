"""The user's own code: what it is made of, and what it says when it fails."""

import ast
import contextlib
import importlib.util
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.files import sha256

KINDS = ("stdlib", "platstdlib", "purelib", "platlib")
INSTALLED = {
    Path(folder).resolve()
    for folder in (*map(sysconfig.get_path, KINDS), *site.getsitepackages(), site.getusersitepackages())
}
SHOWN = 3  # frames of a traceback, and lines of a message
LONGEST = 400  # characters of a message: some list each weight of a network
RAISED = (Exception, SystemExit)  # by the user's code, which may also leave by sys.exit


def files_of_model(source: str, arguments: object) -> dict[str, str]:
    """Return the hashes of the files that the user's model is made of, and of those that its arguments name."""
    return fingerprint(source) | named_files(arguments)


def fingerprint(source: str) -> dict[str, str]:
    """The hashes of all Python files that `package.module:factory` may come from: new code, new run."""
    files = watched_files(source)
    return {name: sha256(files[name]) for name in sorted(files)}


def named_files(arguments: object) -> dict[str, str]:
    """The hashes of those files of the project that `model.arguments` name, at any depth: a configuration, say."""
    if isinstance(arguments, dict | list):
        values = arguments.values() if isinstance(arguments, dict) else arguments
        return {name: digest for value in values for name, digest in named_files(value).items()}
    if not isinstance(arguments, str) or not os.path.isfile(arguments):  # Path's raises where a text is no path at all
        return {}
    within = Path(os.path.abspath(arguments)).is_relative_to(Path.cwd())  # perhaps as a link to where DVC keeps it
    return {arguments: sha256(Path(arguments))} if within else {}


def watched_files(source: str) -> dict[str, Path]:
    """Those of its package, and of what the user wrote besides and these import. None of it is run."""
    package = source.partition(":")[0].partition(".")[0]
    files = _files_of(package)
    if not files:
        raise EngineryError(
            f"model.source: there is no module '{package}' in {Path.cwd()} nor among the installed packages"
        )
    known, waiting = {package}, [files]
    while waiting:
        for name in {name for file in waiting.pop().values() for name in _imports(file)} - known:
            known.add(name)
            if name not in sys.stdlib_module_names and (imported := _users(_files_of(name))):
                files = files | imported
                waiting.append(imported)
    return files


@contextlib.contextmanager
def tell_unwatched(source: str) -> Iterator[None]:
    """While the factory runs: it may import what lies in a folder that it puts on `sys.path` itself."""
    watched, before = {file.resolve() for file in watched_files(source).values()}, set(sys.modules)
    yield
    modules = [module for name, module in sys.modules.items() if name not in before]
    files = {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}
    if lost := sorted(file for file in files - watched if file.suffix == ".py" and not _is_installed(file)):
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        print(
            f"MIND: {source} imports {lost[0]}{more}, where `dvc repro` sees no change: put the folder on PYTHONPATH, "
            "or the files beside params.yaml, and import them by name",
            file=sys.stderr,
        )


def _files_of(package: str) -> dict[str, Path]:
    """Of a module its file, of a package all of its; by their names from where it was found."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return {}
    if found is None:
        return {}
    if found.submodule_search_locations is None:
        files = [Path(str(found.origin))]
        return {file.name: file for file in files if file.is_file()}
    folders = [Path(folder) for folder in found.submodule_search_locations]
    return {file.relative_to(folder.parent).as_posix(): file for folder in folders for file in folder.rglob("*.py")}


def _users(files: dict[str, Path]) -> dict[str, Path]:
    """Nothing, if others wrote them."""
    return {} if any(_is_installed(file) for file in files.values()) else files


def _is_installed(file: Path) -> bool:
    """With Python, or into its environment: others wrote it."""
    return not INSTALLED.isdisjoint(file.resolve().parents)


def _imports(file: Path) -> set[str]:
    """The packages that a file imports at any place of its code; what is within its own package is known."""
    if _is_installed(file):
        return set()
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # who imports it will say so
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in names}


def users_part(error: BaseException) -> str:
    """The error, and the places in the user's own files that led there; of ours and of libraries none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    root = _root_of(error)
    said = _said(error) + (f", because of {_said(root)}" if root is not error else "")
    frames = users_frames(error)[-SHOWN:]
    return said + "".join(
        f"\n  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames
    )


def _said(error: BaseException) -> str:
    """PyTorch tells in the second line what the first announces."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join(lines[:SHOWN])
    told = told if len(told) <= LONGEST else f"{told[:LONGEST]}…"
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def _root_of(error: BaseException) -> BaseException:
    """What it was raised from, or while something else was handled."""
    while earlier := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        error = earlier
    return error


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    here = Path(__file__).parent
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if here not in Path(frame.filename).parents
        and not frame.filename.startswith("<")
        and not _is_installed(Path(frame.filename))
    ]
