"""dvc.yaml against the code: what a stage reads is what DVC watches for it."""

import ast
import re
from pathlib import PurePosixPath
from typing import NamedTuple

import pytest
from ruamel.yaml import YAML
from support.paths import ROOT

# The versions of what shapes graphs, and the user's own code: watched, but no stage needs to read them.
PURE_DEPS = {"artifacts/tools.json", "artifacts/code.json"}
UNWATCHED = {("convert", "artifacts/samples/calibration")}  # dvc.yaml says why
BATCH_ENDS = {"build.profile.batch.min", "build.profile.batch.max"}
PARTS = {  # of a section that a stage hands on, what matters to it: not the batch that engines are tuned for
    ("export", "build.profile"): BATCH_ENDS | {"build.profile.height", "build.profile.width"},
    ("simplify", "build.profile"): BATCH_ENDS | {"build.profile.height", "build.profile.width"},
    ("reference", "build.profile.batch"): BATCH_ENDS,
    ("weights", "model.is_onnx"): {"model.source"},
    ("weights", "model.is_factory"): {"model.source"},
    ("weights", "model"): {"model.source", "model.arguments"},  # which output holds scores changes no weights
}


class Stage(NamedTuple):
    cmd: str
    params: tuple[str, ...]
    deps: tuple[str, ...]
    outs: tuple[str, ...]

    @property
    def watched(self):
        return self.deps + self.outs

    @property
    def paths(self):
        """The paths of the command line."""
        return [word for word in self.cmd.split() if re.match(r"(artifacts|reports|data|history)(/|$)", word)]


def read_yaml(name):
    return YAML(typ="safe").load((ROOT / name).read_text())


def path_of(entry):
    """An out is a path, or a path with options."""
    return next(iter(entry)) if isinstance(entry, dict) else entry


def expand():
    """Each stage of dvc.yaml by name; of those that run per precision, one for each `from`."""
    stages = {}
    for name, written in read_yaml("dvc.yaml")["stages"].items():
        body = written.get("do", written)
        items = [("int8", "calibrated"), ("fp16", "simplified")] if "foreach" in written else [(None, None)]
        for key, made_from in items:

            def fill(text, key=key, made_from=made_from):
                return text.replace("${key}", str(key)).replace("${item.from}", str(made_from))

            stages[name if key is None else f"{name}@{key}"] = Stage(
                cmd=fill(body["cmd"]),
                params=tuple("*" if isinstance(entry, dict) else entry for entry in body.get("params", ())),
                deps=tuple(fill(entry) for entry in body["deps"]),
                outs=tuple(fill(path_of(entry)) for kind in ("outs", "metrics") for entry in body.get(kind, ())),
            )
    return stages


STAGES = expand()
NAMES = sorted({name.partition("@")[0] for name in STAGES})


def source(name):
    return ROOT / "stages" / f"{name.partition('@')[0]}.py"


def covers(one, other):
    """Whether they are the same, or one is a folder that holds the other."""
    return PurePosixPath(other).is_relative_to(one) or PurePosixPath(one).is_relative_to(other)


# What a stage imports.


def file_of(module):
    path = ROOT / module.replace(".", "/")
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.exists():
            return candidate
    return None


def imported_files(file):
    """Enginery's modules that this file imports itself, at any depth of its code."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports relatively, which this test does not follow"
            modules |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    ours = {module for module in modules if module.partition(".")[0] == "enginery"}
    packages = {".".join(module.split(".")[:depth]) for module in ours for depth in range(1, module.count(".") + 2)}
    found = {file_of(module) for module in packages} - {None}
    if file == ROOT / "enginery" / "runtimes" / "__init__.py":
        found |= set(file.parent.glob("*.py"))  # by name, when the machine has chosen
    return found


def closure(file):
    reached, waiting = set(), [file]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += imported_files(current)
    return reached


def holds_code(file):
    return any(not isinstance(node, ast.Expr) for node in ast.parse(file.read_text()).body)


def test_there_is_a_stage_for_every_file_and_a_file_for_every_stage():
    assert sorted(path.stem for path in (ROOT / "stages").glob("*.py") if path.stem != "__init__") == NAMES


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_runs_and_watches_its_own_file(name):
    plain = name.partition("@")[0]
    assert STAGES[name].cmd.startswith(f"python3 -m stages.{plain} ")
    assert f"stages/{plain}.py" in STAGES[name].deps


@pytest.mark.parametrize("name", STAGES)
def test_all_that_a_stage_imports_is_watched(name):
    needed = {path.relative_to(ROOT) for path in closure(source(name)) if holds_code(path)}
    unwatched = [str(path) for path in needed if not any(path.is_relative_to(dep) for dep in STAGES[name].deps)]
    assert sorted(unwatched) == []


@pytest.mark.parametrize("name", STAGES)
def test_no_code_is_watched_that_a_stage_does_not_import(name):
    """It would be run again for nothing."""
    reached = {path.relative_to(ROOT) for path in closure(source(name))}
    code = [dep for dep in STAGES[name].deps if dep.startswith(("enginery", "stages"))]
    assert [dep for dep in code if not any(path.is_relative_to(dep) for path in reached)] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_users_own_code_is_watched_wherever_it_is_run(name):
    stage = next(stage for full, stage in STAGES.items() if full.partition("@")[0] == name)
    runs_it = ROOT / "enginery" / "models.py" in closure(source(name))
    assert ("artifacts/code.json" in stage.deps) == runs_it


# Paths.


@pytest.mark.parametrize("name", STAGES)
def test_every_watched_path_exists_in_the_repository_or_reaches_the_stage_as_an_argument(name):
    stage = STAGES[name]
    for path in stage.watched:
        if path.startswith(("enginery/", "stages/")):
            assert (ROOT / path).exists(), path
        elif path not in PURE_DEPS:
            assert any(covers(path, given) for given in stage.paths), path


@pytest.mark.parametrize("name", STAGES)
def test_every_path_that_a_stage_is_given_is_watched(name):
    stage, plain = STAGES[name], name.partition("@")[0]
    unwatched = {path for path in stage.paths if not any(covers(path, watched) for watched in stage.watched)}
    assert unwatched == {path for owner, path in UNWATCHED if owner == plain} - set(stage.watched)


@pytest.mark.parametrize("name", STAGES)
def test_the_command_line_gives_a_stage_exactly_its_arguments(name):
    plain = name.partition("@")[0]
    tree = ast.parse(source(name).read_text())
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == plain)
    wanted = sorted(argument.arg.replace("_", "-") for argument in function.args.args)
    assert sorted(re.findall(r"--([a-z-]+) ", STAGES[name].cmd)) == wanted


def test_every_path_is_made_by_one_stage_at_most():
    made = [out for stage in STAGES.values() for out in stage.outs]
    assert len(made) == len(set(made))


def test_every_artifact_that_a_stage_watches_is_made_by_another():
    made = [out for stage in STAGES.values() for out in stage.outs]
    for name, stage in STAGES.items():
        for dep in stage.deps:
            if dep.startswith(("artifacts", "reports")):
                assert any(covers(dep, out) for out in made), f"{name}: {dep}"


# Parameters.


def dotted(node):
    """For `a.b.c`: its innermost expression, and `b.c`."""
    names = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return node, ".".join(reversed(names))


def is_call(node, function):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function


def assignments(tree):
    """Each target with its value, also of `a, b = x, y`."""
    for node in ast.walk(tree):
        for target in node.targets if isinstance(node, ast.Assign) else ():
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield target, node.value


def parameters_read(file):
    """Each place in params.yaml that the code reads; '*' where it hands all of them on."""
    tree = ast.parse(file.read_text())
    holders = {
        target.id
        for target, value in assignments(tree)
        if isinstance(target, ast.Name) and is_call(value, "load_params")
    }

    def is_params(node):
        return is_call(node, "load_params") or (
            isinstance(node, ast.Name) and node.id in holders and isinstance(node.ctx, ast.Load)
        )

    accounted = {id(value) for _, value in assignments(tree)}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    read = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            root, place = dotted(node)
            if is_params(root):
                accounted.add(id(root))
                read.add(place)
            elif is_call(root, "precision_params"):
                accounted.add(id(root.args[0]))
                read.add(f"precisions.${{key}}.{place}")
    if any(is_params(node) and id(node) not in accounted for node in ast.walk(tree)):
        read.add("*")
    return read


def parameters_of(name):
    return {part for place in parameters_read(source(name)) for part in PARTS.get((name, place), {place})}


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_lists_every_parameter_that_it_reads(name):
    stage = next(stage for full, stage in STAGES.items() if full.partition("@")[0] == name)
    unlisted = {
        place
        for place in parameters_of(name)
        if not any(listed in ("*", place) or place.startswith(f"{listed}.") for listed in stage.params)
    }
    assert unlisted == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_stage_lists_no_parameter_that_it_does_not_read(name):
    """`from` is read by dvc.yaml itself, to choose the dependency."""
    stage = next(stage for full, stage in STAGES.items() if full.partition("@")[0] == name)
    read = parameters_of(name) | ({"precisions.${key}.from"} if name == "convert" else set())
    unread = {
        listed
        for listed in stage.params
        if not any(place == listed or place.startswith(f"{listed}.") for place in read)
    }
    assert unread == set()


def test_parameters_are_read_by_stages_and_commands_only():
    readers = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "enginery").rglob("*.py"))
        if "Params.read(" in path.read_text() and path.name != "params.py"
    ]
    assert readers == [
        "enginery/bundle/write.py",
        "enginery/cli/compare.py",
        "enginery/diagnosis.py",
        "enginery/nightly/__main__.py",
        "enginery/recipes.py",
    ]


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("x = Params.read().samples", {"samples"}),
        ("params = Params.read()\nuse(params.build.profile, params.model)", {"build.profile", "model"}),
        ("params, here = Params.read(), 1\nuse(params.build.profile, here)", {"build.profile"}),
        ("params, here = Params.read(), 1\nuse(params)", {"*"}),
        ("params, here = Params.read().benchmark, 1\nuse(params.seconds)", {"benchmark"}),
        ("keep = precision_params(Params.read(), precision).keep", {"precisions.${key}.keep"}),
        ("params = Params.read()\nuse(precision_params(params, p).thresholds)", {"precisions.${key}.thresholds"}),
        ("params = Params.read()\nuse(params)", {"*"}),
        ("use(Params.read())", {"*"}),
        ("use(1)", set()),
    ],
)
def test_reading_parameters_is_recognized(tmp_path, code, wanted):
    (tmp_path / "stage.py").write_text(code)
    assert parameters_read(tmp_path / "stage.py") == wanted


@pytest.mark.parametrize("section", read_yaml("params.yaml"))
def test_every_section_of_the_parameters_is_listed_by_a_stage(section):
    assert any(listed.partition(".")[0] == section for stage in STAGES.values() for listed in stage.params)
