"""Find what a stage depends on beside files: values of its parameters, and its code. The stage `machine` writes both.

DVC fails on a parameter that params.yaml leaves out, and would not see a default change. So the values, defaults too,
are written to a file for each stage. The code of a stage is each module of the project that it imports, at any place of
a file, and each file that lies beside such a module, such as a template. Comments, docstrings and formatting of a
module make no difference.
"""

import ast
import hashlib
import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import accumulate, chain
from pathlib import Path
from typing import Any

from enginewright.core.facts import HALVES, RUNTIMES, TASKS, PrecisionName
from enginewright.core.files import Record, sha256, write_text
from enginewright.core.params.all import Params, edit_params, overlay
from enginewright.core.params.section import PARAMS_FILE, read_yaml
from enginewright.pipeline import STAGES

# Not build.profile.batch.opt: the size that engines are tuned for changes nothing in a graph.
BATCH = ("build.profile.batch.min", "build.profile.batch.max")
SIZES = (*BATCH, "build.profile.height", "build.profile.width", "build.profile.axes")
TASK = ("model.scores", "model.boxes")
OF_STAGE = {
    "samples": ("samples",),
    "weights": ("model.source", "model.arguments", "model.scores", "weights"),
    "export": ("export", *TASK, *SIZES),
    "simplify": SIZES,
    "reference": (*TASK, *BATCH),
    "calibrate": ("calibration",),
    "build": ("build", *TASK),
    "benchmark": ("benchmark", "inference"),
    "race": ("benchmark", "inference"),
    "trace": ("inference",),
    "report": tuple(field.alias or name for name, field in Params.model_fields.items()),  # the page shows all
}
# These have a file for each precision that they run for.
OF_PRECISION = {
    "rescue": ("calibration.batch", "precisions.{key}.keep", "precisions.{key}.rescue"),
    "search": ("search.{key}.seconds", "precisions.{key}.keep", "precisions.{key}.thresholds", *TASK),
    "mix": (
        "mix.{key}", "precisions.{key}.thresholds", "precisions.int8.keep", "precisions.{floating}.keep", "build",
        "inference", *TASK,
    ),
    "convert": (
        "precisions.{key}.from", "precisions.{key}.keep", "precisions.{halves}.thresholds", "build.pixels", *TASK,
    ),
    "validate": ("precisions.{key}.thresholds", "precisions.{key}.cure", "inference", "validation"),
}  # fmt: skip


def write_parameters(params: Params, folder: Path) -> None:
    """Write the file of each stage, and leave those as they are that say the same already."""
    content = params.model_dump(mode="json", by_alias=True)
    for stage, places in OF_STAGE.items():
        _write(folder / f"{stage}.json", places, content)
    for stage, places in OF_PRECISION.items():
        section = {"rescue": "search", "search": "search", "mix": "mix"}.get(stage, "precisions")
        for key, item in content[section].items():
            keys = {"key": key, "halves": key if key in HALVES else "", "floating": item.get("floating")}
            named = [place.format(**keys) for place in places]
            _write(folder / stage / f"{key}.json", named, content)


def _write(path: Path, places: Iterable[str], content: Mapping[str, Any]) -> None:
    values = {}
    for place in places:
        value: Any = content
        for name in place.split("."):
            value = value.get(name) if value else None  # not each precision is searched
        values[place] = value
    write_text(path, json.dumps(values, indent=2) + "\n")


def what_dvc_misses(params: Params, file: Path = PARAMS_FILE) -> dict[str, Any]:
    """Return the entries of params.yaml that dvc.yaml itself reads, and for which it knows no default."""
    given, missing = read_yaml(file), dict[str, Any]()
    needed: dict[str, dict[PrecisionName, dict[str, str]]] = {
        "precisions": {name: {"from": each.made_from} for name, each in params.precisions.items()},
        "mix": {name: {"floating": each.floating} for name, each in params.mix.items()},
        "search": {name: {} for name in params.search},
    }
    for section, entries in needed.items():
        there = given.get(section) or {}
        for name, entry in entries.items():
            if name not in there or not entry.keys() <= (there[name] or {}).keys():
                missing.setdefault(section, {})[name] = entry
    return missing


def complete_for_dvc(params: Params, file: Path = PARAMS_FILE) -> str | None:
    """Write these entries, and return a sentence that says so."""
    if not (missing := what_dvc_misses(params, file)):
        return None
    edit_params(lambda content: overlay(content, missing), str(file), file)
    names = ", ".join(f"{section}.{name}" for section, entries in missing.items() for name in entries)
    return f"{file}: wrote the defaults of {names}, which dvc.yaml reads from there"


ROOT = Path(__file__).parents[2]
PACKAGES = ("enginewright", "stages")
RUNNER = "stages.__main__"
DUMPED: dict[str, Any] = {"show_empty": True} if sys.version_info >= (3, 13) else {}  # the same in each version
# How a tuning is found is no part of the stage `build`: what was found is, and DVC watches that.
TUNING = "enginewright.pipeline.tune"
# A stage that imports one of these runs the user's own code.
MODEL_FACTORY, TASK_CHOICE = "enginewright.model.factory", "enginewright.tasks.choose"


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
    paths = (path for package in PACKAGES for path in sorted((root / package).rglob("*.py")))
    named = ((".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"), path) for path in paths)
    files = {name: path for name, path in named if name not in (*PACKAGES, *unused, TUNING)}
    sources = _read(files.values(), root / "enginewright" / "__pycache__" / "sources-2.json")
    folders = {path.parent for path in files.values()}
    beside = {folder: {path: sha256(path) for path in folder.iterdir() if _lies_beside(path)} for folder in folders}
    imports, digests = {}, {}
    for name, path in files.items():
        digest, imported = sources[path]
        if name == TASK_CHOICE:  # it imports the tasks by name
            imported = [*imported, *(task.replace(":", ".") for task in TASKS.values())]
        # Importing a.b.c runs a and a.b, too, and `from a import b` may name a function of a.
        parts = (accumulate(each.split("."), "{}.{}".format) for each in (name, *imported))
        imports[name] = files.keys() & set(chain.from_iterable(parts))
        digests[name] = {path: digest, **beside[path.parent]}
    found = {}
    for stage, place in STAGES.items():
        names = _all_imported({RUNNER, f"{__package__}.{place}"}, imports)
        modules = {path.relative_to(root).as_posix(): it for name in names for path, it in digests[name].items()}
        found[stage] = StageCode(
            modules=dict(sorted(modules.items())),
            model=dict(model) if MODEL_FACTORY in names else {},
            task=dict(task) if TASK_CHOICE in names else {},
        )
    return found


def _module_of_runtime(name: str) -> str:
    file = "tensorrt" if RUNTIMES[name].is_tensorrt else name  # NVIDIA's two share a module
    return f"enginewright.engine.runtimes.{file}"


def _all_imported(modules: set[str], imports: Mapping[str, set[str]]) -> set[str]:
    """Return these modules and each module that importing them can lead to."""
    found: set[str] = set()
    while modules:
        found |= modules
        modules = {name for each in modules for name in imports[each]} - found
    return found


def _lies_beside(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".py", ".pyc") and path.name[0] != "." and path.name[-1] != "~"


def _read(paths: Iterable[Path], kept_in: Path) -> dict[Path, tuple[str, list[str]]]:
    """Return the digest of each file of Python code, and what it imports. Both are kept by its content: parsing all of
    the project takes half a second, and nearly always none has changed."""
    kept = json.loads(kept_in.read_text(encoding="utf-8")) if kept_in.is_file() else {}
    found, read = {}, {}
    for path in paths:
        content = path.read_bytes()
        key = hashlib.sha256(content).hexdigest()
        if key not in kept:
            tree = executed(content)
            dumped = ast.dump(tree, **DUMPED).replace(", type_params=[]", "")  # which are new in Python 3.12
            digest = hashlib.sha256(dumped.encode())
            kept[key] = digest.hexdigest(), sorted(set(imports_of(tree)))
        found[path] = read[key] = kept[key]
    with suppress(OSError):  # a read-only folder only costs time
        write_text(kept_in, json.dumps(read))
    return found


def executed(content: bytes | str) -> ast.Module:
    """Parse a file of Python code, without docstrings and without what only type checkers read."""

    class Executed(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.Expr | None:
            return None if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str) else node

        def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
            self.generic_visit(node)
            return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node

    tree: ast.Module = Executed().visit(ast.parse(content))
    return tree


def imports_of(tree: ast.AST) -> Iterator[str]:
    """Yield the full name of each module, or of each member of a module, that is imported at any place of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
