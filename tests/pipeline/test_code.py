"""Which stages run again when a file of the code changes, tried on a copy of the code."""

import ast
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT
from support.warm_python import warm_python

from enginewright.pipeline import STAGES
from enginewright.pipeline.dependencies import PACKAGES, code_of_stages

OPENVINO, TENSORRT = ("openvino",), ("tensorrt",)
MODEL = {"net.py": "a hash"}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    root = tmp_path_factory.mktemp("code")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.fixture
def rerun(copy):
    """Return the stages whose code is another one when files are changed: by a function of their text."""

    def stages(*changes, runtimes=OPENVINO):
        before = code_of_stages(runtimes, MODEL, {}, copy)
        texts = {copy / path: (copy / path).read_text() for path, _ in changes}
        for path, change in changes:
            changed = change((copy / path).read_text())
            assert changed != (copy / path).read_text()
            (copy / path).write_text(changed)
        try:
            after = code_of_stages(runtimes, MODEL, {}, copy)
        finally:
            for path, text in texts.items():
                path.write_text(text)
        assert before.keys() == after.keys()
        return {stage for stage in before if before[stage] != after[stage]}

    return stages


def add(text):
    return lambda before: f"{before}\n{text}\n"


def replace_first(one, other):
    return lambda before: before.replace(one, other, 1)


CODE = add("print('changed')")
ALL = {*STAGES}
OPEN_ENGINES = {"build", "validate", "benchmark", "race", "trace", "mix", "machine"}


@pytest.mark.parametrize(
    ("path", "change", "stages"),
    [
        ("enginewright/core/files.py", CODE, ALL),
        ("enginewright/core/files.py", add("# why"), set()),
        ("enginewright/core/files.py", replace_first('"""', '"""In other words: '), set()),
        ("enginewright/core/files.py", replace_first("\n\n\ndef ", "\n\n\n\n\n\ndef "), set()),
        ("enginewright/core/files.py", add("if TYPE_CHECKING:\n    from enginewright.cli import terminal"), set()),
        ("stages/__init__.py", CODE, set()),
        ("enginewright/__init__.py", CODE, set()),
        ("enginewright/cli/arguments.py", add("COLOUR = 33"), set()),
        ("enginewright/bundle/write.py", CODE, set()),
        ("enginewright/report/page/charts.py", CODE, {"report", "gate"}),
        ("enginewright/report/page/page.css", add("p { color: red }"), {"report", "gate"}),
        ("enginewright/report/page/page.html", add("<p>more</p>"), {"report", "gate"}),
        (
            "enginewright/precision/calibration/auto.py",
            CODE,
            {"simplify", "calibrate", "rescue", "search", "convert"},
        ),
        ("enginewright/model/export.py", CODE, {"export", "reference"}),
        (
            "enginewright/tasks/regression.py",
            CODE,
            {"weights", "export", "reference", "search", "convert", "mix", "validate", "trace", "machine"},
        ),
        ("enginewright/precision/quantize.py", CODE, {"simplify", "calibrate", "rescue", "search", "mix", "convert"}),
        ("enginewright/core/params/model.py", CODE, ALL),
        ("enginewright/measure/contenders.py", CODE, {"benchmark", "race"}),
        ("enginewright/engine/runtimes/openvino.py", CODE, OPEN_ENGINES),
        ("enginewright/engine/runtimes/tensorrt.py", CODE, set()),
        ("enginewright/pipeline/report.py", CODE, {"report", "gate"}),
        ("enginewright/pipeline/weights.py", CODE, {"weights"}),
        ("enginewright/pipeline/ranges.py", CODE, {"simplify", "calibrate", "rescue"}),
        ("stages/__main__.py", CODE, ALL),
    ],
)
def test_a_change_runs_the_stages_that_import_the_file(rerun, path, change, stages):
    assert rerun((path, change)) == stages


def test_a_runtime_counts_where_it_is_in_use(rerun):
    assert rerun(("enginewright/engine/runtimes/tensorrt.py", CODE), runtimes=TENSORRT) == OPEN_ENGINES
    assert rerun(("enginewright/engine/runtimes/openvino.py", CODE), runtimes=TENSORRT) == set()


def test_a_module_that_is_imported_for_its_types_alone_does_not_count(rerun):
    only_types = add("if TYPE_CHECKING:\n    import enginewright.cli.arguments")
    really = add("def later():\n    import enginewright.cli.arguments")
    assert rerun(("enginewright/pipeline/weights.py", only_types), ("enginewright/cli/arguments.py", CODE)) == set()
    assert rerun(("enginewright/pipeline/weights.py", really), ("enginewright/cli/arguments.py", CODE)) == {"weights"}


def test_the_users_model_counts_where_it_is_run(copy):
    before, after = (code_of_stages(OPENVINO, model, {}, copy) for model in (MODEL, {"net.py": "another hash"}))
    assert {stage for stage in ALL if before[stage] != after[stage]} == {
        "weights",
        "export",
        "reference",
        "benchmark",
        "race",
    }


def test_the_users_task_counts_where_answers_are_judged(copy):
    before, after = (code_of_stages(OPENVINO, {}, task, copy) for task in ({}, {"signs.py": "a hash"}))
    changed = {stage for stage in ALL if before[stage] != after[stage]}
    assert changed == {"weights", "export", "reference", "search", "convert", "mix", "validate", "trace", "machine"}


def test_what_was_read_is_kept_by_content(copy):
    first = code_of_stages(OPENVINO, MODEL, {}, copy)
    kept = copy / "enginewright/__pycache__/sources-2.json"
    changed = kept.read_text().replace("enginewright.core", "enginewright.none")
    kept.write_text(changed)
    assert code_of_stages(OPENVINO, MODEL, {}, copy) != first
    kept.unlink()
    assert code_of_stages(OPENVINO, MODEL, {}, copy) == first


# What reading the files finds is what Python does.

LOADED = """
import importlib, json, sys
for name in [name for name in sys.modules if name.startswith("enginewright.")]:  # what a warm Python begins with
    del sys.modules[name]
from enginewright.pipeline import STAGES
for stage in sys.argv[1:]:
    importlib.import_module(f"enginewright.pipeline.{STAGES[stage]}")
    ours = [name for name in sys.modules if name.partition(".")[0] in ("enginewright", "stages")]
    print(json.dumps([stage, [sys.modules.pop(name).__file__ for name in ours if "." in name]]))
"""


def test_every_module_that_importing_a_stage_loads_is_found():
    command = [warm_python() / "python3", "-c", LOADED, *sorted(ALL)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    for stage, files in map(json.loads, child.stdout.splitlines()):
        loaded = {Path(file).relative_to(ROOT).as_posix() for file in files}
        assert f"enginewright/pipeline/{STAGES[stage]}.py" in loaded
        assert loaded <= code_of_stages(OPENVINO, {}, {})[stage].modules.keys()


def test_no_file_imports_in_a_way_that_reading_it_does_not_find():
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    found = {path.relative_to(ROOT).as_posix(): set(unfindable_imports(ast.parse(path.read_text()))) for path in paths}
    assert {name: ways for name, ways in found.items() if ways} == {
        "enginewright/bundle/sbom.py": {"the root package"},  # no stage imports these
        "enginewright/bundle/write.py": {"the root package"},
        "enginewright/cli/main.py": {"import_module", "the root package"},
        "enginewright/cli/layout.py": {"the root package"},
        "enginewright/cli/commands/upgrade.py": {"the root package"},
        "enginewright/core/installing.py": {"the root package"},  # its number, which changes no result
        "enginewright/engine/runtimes/tensorrt_library.py": {"import_module"},  # NVIDIA's library: there are two
        "enginewright/model/factory.py": {"import_module"},  # the user's model, whose files StageCode.model lists
        "enginewright/pipeline/__init__.py": {"import_module"},  # the stage itself
        "enginewright/tasks/choose.py": {"import_module"},  # the user's task, whose files StageCode.task lists
    }


def unfindable_imports(tree):
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(level=level) if level > 0:
                yield "relative"
            case ast.ImportFrom(module=module) if module in PACKAGES:
                yield "the root package"
            case ast.Import(names=names) if {alias.name for alias in names} & {*PACKAGES}:
                yield "the root package"
            case ast.Call(ast.Attribute(attr=("import_module" | "run_module" | "run_path") as function)):
                yield function
            case ast.Call(ast.Name(id=("__import__" | "import_module" | "exec" | "eval") as function)):
                yield function
