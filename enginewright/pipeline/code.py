"""Find the code that each stage runs, so that a stage runs again when its code changes, and only then.

The code of a stage is each module of the project that it imports, at any place of a file, and each file that lies
beside such a module, such as a template. Comments, docstrings and formatting of a module make no difference.
"""

import ast
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Self, TypeGuard

from enginewright.core.facts import RUNTIMES, TASKS
from enginewright.core.files import Record, new_file, sha256

# Read what a file of Python code imports, and a digest of what it does.

FORMAT = 1  # of the kept file: another format is not read


class Source(NamedTuple):
    digest: str
    imports: list[str]


class KeptSources:
    """The sources of files, kept in a file by their content.

    Parsing all files of the project takes half a second, and nearly always none has changed.
    """

    def __init__(self, kept_in: Path) -> None:
        self._kept_in = kept_in
        self._of_file: dict[Path, Source] = {}
        self._used: dict[str, Source] = {}

    def __enter__(self) -> Self:
        try:
            kept = json.loads(self._kept_in.read_text(encoding="utf-8"))
            self._kept = {key: Source(*values) for key, values in kept["files"].items() if kept["format"] == FORMAT}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self._kept = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._used != self._kept:
            with suppress(OSError), new_file(self._kept_in) as temporary:  # a read-only folder only costs time
                temporary.write_text(json.dumps({"format": FORMAT, "files": self._used}), encoding="utf-8")

    def read(self, file: Path) -> Source:
        if file not in self._of_file:
            content = file.read_bytes()
            key = hashlib.sha256(content).hexdigest()
            self._of_file[file] = self._used[key] = self._kept.get(key) or parse(content)
        return self._of_file[file]


def parse(content: bytes) -> Source:
    tree = ast.parse(content)
    imports = sorted(set(imports_of(tree)))
    return Source(hashlib.sha256(_meaning(tree).encode()).hexdigest(), imports)


def _meaning(tree: ast.Module) -> str:
    """Write the syntax tree without positions, comments and docstrings, alike in each version of Python."""
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _has_no_effect(each)]  # type: ignore[attr-defined]
    return ast.dump(tree).replace(", type_params=[]", "")  # a field that Python 3.12 added


def _has_no_effect(node: ast.AST) -> bool:
    """Tell whether a statement is only a string, as docstrings are, or only read by type checkers."""
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return is_text or (_is_for_types(node) and not node.orelse)


def _is_for_types(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(tree: ast.Module) -> Iterator[str]:
    """Yield the full name of each module, or of each member of a module, that is imported at any place of a file."""
    for node in _executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _executed(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through a file, past what only type checkers read."""
    for child in node.orelse if _is_for_types(node) else ast.iter_child_nodes(node):
        yield child
        yield from _executed(child)


ROOT = Path(__file__).parents[2]
PACKAGES = ("enginewright", "stages")
RUNTIMES_PACKAGE = "enginewright.engine.runtimes"
RUNNER = "stages.__main__"
# A stage that imports one of these runs the user's own code.
MODEL_FACTORY, TASK = "enginewright.model.factory", "enginewright.tasks.choose"


class StageCode(Record):
    """The code of one stage: the digest of each file of the project, and of each file of the user's model and task."""

    modules: dict[str, str]
    model: dict[str, str]
    task: dict[str, str]


def code_of_stages(
    runtimes: Collection[str], model: Mapping[str, str], task: Mapping[str, str], root: Path = ROOT
) -> dict[str, StageCode]:
    """Return the code of each stage, without the runtimes that are not in use: no result depends on them."""
    unused = {_module_of_runtime(name) for name in RUNTIMES} - {_module_of_runtime(name) for name in runtimes}
    with KeptSources(root / "enginewright" / "__pycache__" / "sources.json") as sources:
        modules = Modules(root, unused, sources)
        imported = {stage: modules.imported_by(RUNNER, f"stages.{stage}") for stage in modules.stages()}
        return {
            stage: StageCode(
                modules=dict(sorted(item for name in names for item in modules.digests(name).items())),
                model=dict(model) if MODEL_FACTORY in names else {},
                task=dict(task) if TASK in names else {},
            )
            for stage, names in imported.items()
        }


def _module_of_runtime(name: str) -> str:
    return f"{RUNTIMES_PACKAGE}.{'tensorrt' if RUNTIMES[name].is_tensorrt else name}"  # NVIDIA's two share a module


class Modules:
    def __init__(self, root: Path, unused: Collection[str], sources: KeptSources) -> None:
        self._root, self._sources = root, sources
        files = (file for package in PACKAGES for file in sorted((root / package).rglob("*.py")))
        self._files = {name: file for file in files if (name := self._name_of(file)) not in (*PACKAGES, *unused)}
        self._imports: dict[str, set[str]] = {}
        self._templates: dict[Path, dict[str, str]] = {}

    def stages(self) -> list[str]:
        return [name.removeprefix("stages.") for name in self._files if name.startswith("stages.") and name != RUNNER]

    def imported_by(self, *modules: str) -> set[str]:
        """Return these modules and each module that importing them can lead to."""
        found: set[str] = set()
        waiting = set(modules)
        while waiting:
            found |= waiting
            waiting = {name for each in waiting for name in self._imports_of(each)} - found
        return found

    def digests(self, module: str) -> dict[str, str]:
        """Return the digest of the module's file, and of each file beside it that is no code."""
        file = self._files[module]
        return {self._path(file): self._sources.read(file).digest} | self._templates_in(file.parent)

    def _name_of(self, file: Path) -> str:
        return ".".join(file.relative_to(self._root).with_suffix("").parts).removesuffix(".__init__")

    def _imports_of(self, module: str) -> set[str]:
        if module not in self._imports:
            imports = self._sources.read(self._files[module]).imports
            if module == TASK:  # which imports them by these names
                imports = [*imports, *(task.replace(":", ".") for task in TASKS.values())]
            # Importing a.b.c runs a and a.b, too.
            named = {name for each in (module, *imports) for name in accumulate(each.split("."), "{}.{}".format)}
            self._imports[module] = named & self._files.keys()  # `from a import b` may name a function of a
        return self._imports[module]

    def _templates_in(self, folder: Path) -> dict[str, str]:
        if folder not in self._templates:
            named = (file for file in folder.iterdir() if file.is_file() and file.suffix not in (".py", ".pyc"))
            others = (file for file in named if not file.name.startswith(".") and not file.name.endswith("~"))
            self._templates[folder] = {self._path(file): sha256(file) for file in others}
        return self._templates[folder]

    def _path(self, file: Path) -> str:
        return file.relative_to(self._root).as_posix()
