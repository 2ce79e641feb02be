"""Find the code that each stage runs, so that a stage runs again when its code changes, and only then.

The code of a stage is each module of the project that it imports, at any place of a file, and each file that lies
beside such a module, such as a template. Comments, docstrings and formatting of a module make no difference.
"""

import ast
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple, TypeGuard

from enginewright.core.facts import RUNTIMES, TASKS
from enginewright.core.files import Record, new_file, sha256
from enginewright.pipeline import STAGES

ROOT = Path(__file__).parents[2]
PACKAGES = ("enginewright", "stages")
RUNNER = "stages.__main__"
# A stage that imports one of these runs the user's own code.
MODEL_FACTORY, TASK = "enginewright.model.factory", "enginewright.tasks.choose"
FORMAT = 1  # of the file of what was read: another format is not taken


class StageCode(Record):
    """The code of one stage: the digest of each file of the project, and of each file of the user's model and task."""

    modules: dict[str, str]
    model: dict[str, str]
    task: dict[str, str]


class Source(NamedTuple):
    digest: str
    imports: list[str]


def code_of_stages(
    runtimes: Collection[str], model: Mapping[str, str], task: Mapping[str, str], root: Path = ROOT
) -> dict[str, StageCode]:
    """Return the code of each stage, without the runtimes that are not in use: no result depends on them."""
    unused = {_module_of_runtime(name) for name in RUNTIMES} - {_module_of_runtime(name) for name in runtimes}
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    named = ((".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path) for path in paths)
    files = {name: path for name, path in named if name not in (*PACKAGES, *unused)}
    sources = _read(files.values(), root / "enginewright" / "__pycache__" / "sources.json")
    beside = {folder: _digests_of_templates(folder) for folder in {path.parent for path in files.values()}}
    imports, digests = {}, {}
    for name, path in files.items():
        # Importing a.b.c runs a and a.b, too, and `from a import b` may name a function of a.
        tasks = [task.replace(":", ".") for task in TASKS.values()] if name == TASK else []  # it imports them by name
        parts = (accumulate(each.split("."), "{}.{}".format) for each in (name, *sources[path].imports, *tasks))
        imports[name] = files.keys() & set(chain.from_iterable(parts))
        digests[name] = {path: sources[path].digest, **beside[path.parent]}
    found = {}
    for stage, place in STAGES.items():
        names = _all_imported((RUNNER, f"{__package__}.{place}"), imports)
        modules = {path.relative_to(root).as_posix(): it for name in names for path, it in digests[name].items()}
        found[stage] = StageCode(
            modules=dict(sorted(modules.items())),
            model=dict(model) if MODEL_FACTORY in names else {},
            task=dict(task) if TASK in names else {},
        )
    return found


def _module_of_runtime(name: str) -> str:
    file = "tensorrt" if RUNTIMES[name].is_tensorrt else name  # NVIDIA's two share a module
    return f"enginewright.engine.runtimes.{file}"


def _all_imported(modules: Iterable[str], imports: Mapping[str, set[str]]) -> set[str]:
    """Return these modules and each module that importing them can lead to."""
    found: set[str] = set()
    waiting = set(modules)
    while waiting:
        found |= waiting
        waiting = {name for each in waiting for name in imports[each]} - found
    return found


def _digests_of_templates(folder: Path) -> dict[Path, str]:
    named = (path for path in folder.iterdir() if path.is_file() and path.suffix not in (".py", ".pyc"))
    return {path: sha256(path) for path in named if not path.name.startswith(".") and not path.name.endswith("~")}


def _read(paths: Iterable[Path], kept_in: Path) -> dict[Path, Source]:
    """Read files of Python code. What was read is kept by their content: parsing all of the project takes half a
    second, and nearly always none has changed."""
    try:
        file = json.loads(kept_in.read_text(encoding="utf-8"))
        kept = {key: Source(*values) for key, values in file["files"].items() if file["format"] == FORMAT}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = {}
    found, read = {}, {}
    for path in paths:
        content = path.read_bytes()
        key = hashlib.sha256(content).hexdigest()
        found[path] = read[key] = kept.get(key) or _parse(content)
    if read != kept:
        with suppress(OSError), new_file(kept_in) as temporary:  # a read-only folder only costs time
            temporary.write_text(json.dumps({"format": FORMAT, "files": read}), encoding="utf-8")
    return found


def _parse(content: bytes) -> Source:
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
