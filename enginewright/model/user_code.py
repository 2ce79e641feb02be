"""The user's own code: the files that it consists of, and its errors in plain words."""

import ast
import contextlib
import functools
import importlib.util
import os
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import TASKS
from enginewright.core.files import sha256
from enginewright.core.params.all import Params
from enginewright.core.user_files import look_in_folders_above

PYTHONS = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
INSTALL_FOLDERS = {Path(each).resolve() for each in (*PYTHONS, *site.getsitepackages(), site.getusersitepackages())}
PACKAGE_FOLDERS = ("site-packages", "dist-packages")  # a .pth file may add those of another environment to sys.path
ENGINEWRIGHT = Path(__file__).parents[1]
MOST_LINES = 3  # of a traceback, and of a message
MOST_CHARACTERS = 400  # of a message: some list each weight of a network
USER_ERRORS = (Exception, SystemExit)  # the user's code may also leave by sys.exit


def users_code(params: Params) -> dict[str, dict[str, str]]:
    """Return the hashes of the user's own code: of the model, with the files that its arguments name, and the task."""
    model, task = params.model, params.task
    return {
        "model": fingerprint(model.source) | files_named_in(model.arguments) if model.is_factory else {},
        # A task is derived from a class of Enginewright, whose files are those of the stages.
        "task": {} if task in TASKS else fingerprint(task, "task", without=("enginewright",)),
    }


def fingerprint(source: str, parameter: str = "model.source", without: Sequence[str] = ()) -> dict[str, str]:
    """Return the hashes of all Python files that `package.module:factory` may use, so that new code means a new run."""
    return {name: sha256(file) for name, file in sorted(watched_files(source, parameter, without).items())}


def files_named_in(arguments: object) -> dict[str, str]:
    """Return the hashes of the project's files that `model.arguments` name at any depth, such as a configuration."""
    if isinstance(arguments, dict | list):
        values = arguments.values() if isinstance(arguments, dict) else arguments
        return {name: digest for value in values for name, digest in files_named_in(value).items()}
    # os.path, since Path.is_file raises for some texts that cannot be paths
    if not isinstance(arguments, str) or not os.path.isfile(arguments):
        return {}
    # Links are not followed: a file of the project may be a link into DVC's cache.
    is_in_project = Path(os.path.abspath(arguments)).is_relative_to(Path.cwd())
    return {arguments: sha256(Path(arguments))} if is_in_project else {}


def watched_files(source: str, parameter: str = "model.source", without: Sequence[str] = ()) -> dict[str, Path]:
    """Return the files of the source's package, and of the user's modules that these import, without running any."""
    package = source.partition(":")[0].partition(".")[0]
    look_in_folders_above()
    if not (files := _files_in(_places_of(package))):
        raise EnginewrightError(
            f"{parameter}: there is no module '{package}' in {Path.cwd()} nor among the installed packages"
        )
    known, waiting = {package, *without, *sys.stdlib_module_names}, [files]
    while waiting:
        own = [file for file in waiting.pop().values() if not _is_installed(file)]
        for name in {name for file in own for name in _imported_packages(file.read_bytes())} - known:
            known.add(name)
            if not any(map(_is_installed, places := _places_of(name))):  # else they are thousands
                waiting.append(_files_in(places))
                files |= waiting[-1]
    return files


@contextlib.contextmanager
def warn_of_unwatched_code(source: str) -> Iterator[None]:
    """Warn afterwards if the factory imported code from a folder that it put on `sys.path` itself."""
    watched, before = {file.resolve() for file in watched_files(source).values()}, set(sys.modules)
    yield
    ours = "enginewright."  # what a stage imports late, in a checkout
    modules = [module for name, module in sys.modules.items() if name not in before and not name.startswith(ours)]
    files = {Path(file).resolve() for module in modules if (file := getattr(module, "__file__", None))}
    if unwatched := sorted(file for file in files - watched if file.suffix == ".py" and not _is_installed(file)):
        more = f" and {len(unwatched) - 1} more" if len(unwatched) > 1 else ""
        print(
            f"MIND: {source} imports {unwatched[0]}{more}, where `dvc repro` sees no change: put the folder on "
            "PYTHONPATH, or the files beside params.yaml, and import them by name",
            file=sys.stderr,
        )


def _places_of(package: str) -> list[Path]:
    """Return the file of a module, or the folders of a package."""
    with contextlib.suppress(ImportError, ValueError):
        if found := importlib.util.find_spec(package):
            return [Path(each) for each in found.submodule_search_locations or [str(found.origin)]]
    return []


def _files_in(places: list[Path]) -> dict[str, Path]:
    """Return these files, and all of these folders, by their paths from the folder that holds a package."""
    files = [(place, file) for place in places for file in ([place] if place.is_file() else place.rglob("*.py"))]
    return {file.relative_to(place.parent).as_posix(): file for place, file in files}


def _is_installed(file: Path) -> bool:
    """Tell whether a file came with Python or with an installed package, so that the user did not write it."""
    added = {Path(folder).resolve() for folder in sys.path if Path(folder).name in PACKAGE_FOLDERS}
    return not (INSTALL_FOLDERS | added).isdisjoint(file.resolve().parents)


@functools.cache
def _imported_packages(code: bytes) -> set[str]:
    """Return the packages that a file of the user's imports anywhere in its code, but not by relative imports."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError):  # importing the file will report it
        return set()
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0]
    return {name.partition(".")[0] for name in names}


def describe_user_error(error: BaseException) -> str:
    """Return the error and the lines of the user's own files that led to it, without ours and those of libraries."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    cause = error  # becomes the first one, from which or during whose handling the others were raised
    while earlier := cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__):
        cause = earlier
    message = _message_of(error) + (f", because of {_message_of(cause)}" if cause is not error else "")
    frames = user_frames(error)[-MOST_LINES:]
    lines = [f"\n  {frame.filename}, line {frame.lineno}, in {frame.name}: {frame.line}" for frame in frames]
    return message + "".join(lines)


def _message_of(error: BaseException) -> str:
    """Return the error's type and its first lines, since some errors of PyTorch give the reason in the second."""
    message = " ".join([line.strip() for line in str(error).splitlines() if line.strip()][:MOST_LINES])
    message = message if len(message) <= MOST_CHARACTERS else f"{message[:MOST_CHARACTERS]}…"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def user_frames(error: BaseException) -> list[traceback.FrameSummary]:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")]
    files = {frame.filename: Path(frame.filename) for frame in frames}
    ours = {name for name, file in files.items() if ENGINEWRIGHT in file.parents or _is_installed(file)}
    return [frame for frame in frames if frame.filename not in ours]
