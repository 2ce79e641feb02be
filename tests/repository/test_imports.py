"""Check what importing costs and needs, each in a fresh interpreter, and which room imports which."""

import ast
import graphlib
import json
import subprocess
import sys
from collections import Counter
from functools import cache

import pytest
from support.paths import ROOT
from support.warm_python import warm_python

from enginewright.pipeline import STAGES
from enginewright.pipeline.dependencies import executed, imports_of

FILES = [path for folder in ("enginewright", "stages", "tools") for path in (ROOT / folder).rglob("*.py")]
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in FILES)
# Each room imports only rooms that stand before it.
ROOMS = (
    "core", "data", "tasks", "graph", "model", "engine", "measure", "precision", "report", "bundle", "targets",
    "nightly", "pipeline", "cli",
)  # fmt: skip
LIGHT_STAGES = (
    "machine", "samples", "calibrate", "rescue", "search", "mix", "convert", "build", "validate", "trace", "benchmark",
    "race", "report", "gate",
)  # fmt: skip


def imported(modules, blocked=(), python=sys.executable):
    """All that is loaded after importing the modules, without the blocked ones."""
    program = f"""
import importlib, json, sys
sys.modules.update(dict.fromkeys({list(blocked)!r}))
for module in {list(modules)!r}:
    importlib.import_module(module)
print(json.dumps(sorted(name for name, module in sys.modules.items() if module is not None)))
"""
    child = subprocess.run([python, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return set(json.loads(child.stdout.splitlines()[-1]))


def test_every_module_imports_without_tensorrt():
    assert imported(MODULES, ("tensorrt", "tensorrt_rtx"), warm_python() / "python3") >= set(MODULES)


def test_stages_that_need_no_torch_do_not_load_it():
    """It takes three seconds, and a machine that only builds engines need not have it."""
    assert "torch" not in imported([f"enginewright.pipeline.{STAGES[name]}" for name in LIGHT_STAGES])


def test_openvino_is_loaded_only_when_it_is_used():
    assert "openvino" not in imported(["enginewright.engine.engine", "enginewright.engine.runtimes.openvino"])


def test_what_runs_and_bundles_engines_needs_a_light_installation_alone():
    light = (
        "enginewright.engine.engine",
        "enginewright.bundle.write",
        "enginewright.measure.comparison",
        "enginewright.cli.python",
    )
    assert imported(light, ("PIL", "torch", "onnx", "pandas", "dvc", "tokenizers", "matplotlib"))


def test_reading_parameters_and_records_is_cheap():
    loaded = imported(["enginewright.core.params.all", "enginewright.core.files"])
    assert not loaded & {"numpy", "onnx", "torch", "pandas"}


@pytest.mark.parametrize("module", ["enginewright", "enginewright.cli.main"])
def test_importing_the_package_or_the_command_loads_no_library(module):
    """It takes 20 milliseconds, and NumPy alone takes 100: so what is loaded is counted, and not the time."""
    named = {name.partition(".")[0] for name in imported([module]) - imported([])}
    assert named - sys.stdlib_module_names == {"enginewright"}


def test_every_room_is_in_the_order():
    assert {path.parent.name for path in (ROOT / "enginewright").glob("*/__init__.py")} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_the_rooms_before_it(room):
    allowed = {*ROOMS[: ROOMS.index(room) + 1]}
    for module in MODULES:
        if module.startswith(f"enginewright.{room}."):
            rooms = {name.split(".")[1] for name in imported_by(parsed(module)) if "." in name}
            assert rooms <= allowed, module


def test_the_house_stays_small():
    """Hold the house to its size. The aim is 27,000 lines in 200 files: these numbers only fall."""
    lines = [len(path.read_text().splitlines()) for path in FILES]
    assert (len(lines) <= 199, sum(lines) <= 31_399, max(lines) <= 450) == (True, True, True), (len(lines), sum(lines))
    arrows = {
        (room, name.split(".")[1])
        for room in ROOMS
        for module in MODULES
        if module.startswith(f"enginewright.{room}.")
        for name in imported_by(parsed(module))
        if name.startswith("enginewright.") and name.split(".")[1] != room
    }
    assert len(arrows) <= 60, len(arrows)


def test_no_class_has_the_name_of_another():
    """But for the target of an engine and one of a fleet."""
    classes = [node.name for module in MODULES for node in ast.walk(parsed(module)) if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(classes).items() if count > 1] == ["Target"]


def test_no_module_imports_itself_through_others():
    """Imports within functions count, too, but not of the package itself, which has its version and the interface."""
    inner = {module: imported_by(parsed(module)) - {"enginewright"} for module in MODULES}
    graphlib.TopologicalSorter(inner).prepare()


@cache
def parsed(module):
    path = ROOT.joinpath(*module.split("."))
    return executed((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())


@cache
def imported_by(tree):
    """Return the modules of the project that are imported, except for type checkers alone."""
    found = set()
    for name in imports_of(tree):
        found |= {name if name in MODULES else name.rpartition(".")[0]} & {*MODULES}
    return found
