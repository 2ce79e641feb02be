"""dvc.yaml against the stages: what a stage reads is what DVC watches for it."""

import ast
import inspect
import re
import subprocess
from functools import reduce
from pathlib import Path, PurePosixPath
from typing import NamedTuple, get_args

import pytest
from dvc.parsing import DataResolver
from dvc.repo import Repo
from dvc.repo.artifacts import Artifacts
from ruamel.yaml import YAML
from support.params import VALID
from support.paths import ROOT

from enginewright.cli.layout import planned_stages
from enginewright.core.params.all import Params
from enginewright.core.params.build import TimedStage
from enginewright.core.params.precisions import MixParams, PrecisionParams, SearchParams
from enginewright.core.params.section import PARAMS_FILE, Section
from enginewright.pipeline import STAGES as WHERE
from enginewright.pipeline import stage_of
from enginewright.pipeline.dependencies import OF_PRECISION, OF_STAGE, complete_for_dvc, write_parameters

LONGEST = 200  # lines
VERSIONS = "artifacts/tools.json"  # of the libraries that shape graphs: watched, but no stage needs to read it
UNWATCHED = {  # dvc.yaml says why
    *(("convert", f"artifacts/{place}") for place in ("samples/calibration", "calibrated", "rescued")),
    ("mix", "artifacts/rescued/int8"),
}
# A stage that reads a section may use a part of it.
BATCH_ENDS = {"build.profile.batch.min", "build.profile.batch.max"}  # not the size that engines are tuned for
OTHER_AXES = {"build.profile.height", "build.profile.width", "build.profile.axes"}
USED_PARTS = {
    ("export", "build.profile"): BATCH_ENDS | OTHER_AXES,
    ("export", "build.profile.batch"): BATCH_ENDS,
    ("simplify", "build.profile"): BATCH_ENDS | OTHER_AXES,
    ("reference", "build.profile.batch"): BATCH_ENDS,
    ("convert", "build"): {"build.pixels"},  # of SampleSet.fed_to
    ("weights", "model"): {"model.source", "model.arguments"},  # which output holds scores changes no weights
}
ALL = "*"
READERS = (
    "enginewright/cli/commands/bundle.py",
    "enginewright/cli/commands/compare.py",
    "enginewright/cli/commands/cure.py",
    "enginewright/cli/commands/fleet.py",
    "enginewright/cli/commands/keep.py",
    "enginewright/cli/commands/upgrade.py",
    "enginewright/cli/machine_checks.py",
    "enginewright/core/params/all.py",
    "enginewright/nightly/night.py",
    "enginewright/pipeline/__init__.py",
    "enginewright/pipeline/__main__.py",
    "enginewright/targets/here.py",
)


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
    """Return the path of an output, which may be written with options."""
    return next(iter(entry)) if isinstance(entry, dict) else entry


def expand():
    """Return each stage of both plans by name; a stage that runs for each precision once for each `from`."""
    stages = {}
    for name, written in planned_stages().items():
        body = written.get("do", written)
        items = [("int8", "searched"), ("fp16", "simplified")] if "foreach" in written else [(None, None)]
        for key, made_from in items:

            def fill(text, key=key, made_from=made_from):
                values = {"${key}": key, "${item.from}": made_from, "${item.floating}": "fp16"}
                return reduce(lambda whole, pair: whole.replace(pair[0], str(pair[1])), values.items(), text)

            stages[name if key is None else f"{name}@{key}"] = Stage(
                cmd=fill(body["cmd"]),
                params=tuple(ALL if isinstance(entry, dict) else entry for entry in body.get("params", ())),
                deps=tuple(fill(entry) for entry in body["deps"]),
                outs=tuple(fill(path_of(entry)) for kind in ("outs", "metrics") for entry in body.get(kind, ())),
            )
    return stages


STAGES = expand()
BY_FILE = {name.partition("@")[0]: stage for name, stage in STAGES.items()}


def functions_beside(stage):
    """Return the functions of the file that has a stage's function, by name."""
    path = ROOT / "enginewright/pipeline" / f"{WHERE[stage]}.py"
    return {node.name: node for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def covers(one, other):
    """Tell whether they are the same, or one is a folder that holds the other."""
    return PurePosixPath(other).is_relative_to(one) or PurePosixPath(one).is_relative_to(other)


def test_the_plan_is_short_enough_to_be_read():
    lines = (ROOT / "dvc.yaml").read_text().splitlines()
    assert len(lines) < LONGEST
    assert max(map(len, lines)) <= 120


# Code.


def test_every_stage_has_a_function_and_no_other_is_listed():
    assert BY_FILE.keys() == WHERE.keys()
    assert all(stage in functions_beside(stage) for stage in WHERE)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_runs_its_own_file_and_watches_the_digests_of_its_own_code_alone(name):
    stage, plain = STAGES[name], name.partition("@")[0]
    assert stage.cmd.startswith(f"python3 -m stages {plain} ")
    code = [path for path in stage.deps if path.startswith(("enginewright", "stages", "artifacts/code"))]
    assert code == ([] if plain == "machine" else [f"artifacts/code/{plain}.json"])


def test_the_code_of_all_stages_is_written_by_the_stage_that_always_runs():
    machine = planned_stages()["machine"]
    assert machine["always_changed"]
    assert "artifacts/code" in STAGES["machine"].outs
    assert STAGES["machine"].params == ()  # it reads all, whatever changed


def of_parameters(name):
    return f"{name.replace('@', '/') if name.partition('@')[0] in OF_PRECISION else name.partition('@')[0]}.json"


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_watches_its_own_parameters_alone(name):
    watched = [path for path in STAGES[name].deps if path.startswith("artifacts/parameters")]
    assert watched == ([] if name in ("machine", "gate") else [f"artifacts/parameters/{of_parameters(name)}"])


# Paths.


@pytest.mark.parametrize("name", STAGES)
def test_every_watched_path_reaches_the_stage_as_an_argument(name):
    stage = STAGES[name]
    known = {VERSIONS, f"artifacts/code/{name.partition('@')[0]}.json", f"artifacts/parameters/{of_parameters(name)}"}
    for path in set(stage.watched) - known:
        assert any(covers(path, given) for given in stage.paths), path


@pytest.mark.parametrize("name", STAGES)
def test_every_path_that_a_stage_is_given_is_watched(name):
    stage, plain = STAGES[name], name.partition("@")[0]
    unwatched = {path for path in stage.paths if not any(covers(path, watched) for watched in stage.watched)}
    assert unwatched == {path for owner, path in UNWATCHED if owner == plain} - set(stage.watched)


@pytest.mark.parametrize("name", STAGES)
def test_the_command_line_gives_a_stage_exactly_its_arguments(name):
    plain = name.partition("@")[0]
    parameters = dict(inspect.signature(stage_of(plain)).parameters)
    paths = parameters.pop("paths", None)
    arguments = {*parameters, *(paths.annotation._fields if paths else ())} - {"params"}
    wanted = sorted(argument.replace("_", "-") for argument in arguments)
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


def parameters_read(function, beside):
    """Return each place of params.yaml that a function reads by its argument `params`, or by a name that it gives to a
    part of it. A part that it hands on is read as a whole, except by a function beside it."""
    names, read, walked = {"params": ()}, set(), list(ast.walk(function))
    for node in walked:
        for target, value in assigned(node):
            if isinstance(target, ast.Name) and (place := place_of(value, names)):
                names.setdefault(target.id, place)
    parts = {value for node in walked for target, value in assigned(node) if isinstance(target, ast.Name)}
    parts |= {node.value for node in walked if isinstance(node, ast.Attribute | ast.Subscript)}
    for node in walked:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in beside:
            whole = [each for each in node.args if place_of(each, names) == ()]
            parts.update(whole)
            read |= parameters_read(beside[node.func.id], beside) if whole else set()
    for node in walked:
        place = None if node in parts or is_stored(node) else place_of(node, names)
        if place is not None:
            read.add(".".join(place) or ALL)
    return read


def is_stored(node):
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def assigned(node):
    """Yield each target of an assignment with what it gets."""
    if isinstance(node, ast.Assign):
        (target,), value = node.targets, node.value
        both = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        yield from zip(target.elts, value.elts, strict=True) if both else [(target, value)]


def place_of(node, names):
    """Return the place of params.yaml that an expression such as params.build.profile reads; else None."""
    match node:
        case ast.Name(name):
            return names.get(name)
        case ast.Attribute(value, attribute) if (place := place_of(value, names)) is not None:
            fields = getattr(section_at(place), "model_fields", {})
            name = fields[attribute].alias or attribute if attribute in fields else None  # a method or a property
            return place if name is None else (*place, name)
        case ast.Subscript(value, key) if place := place_of(value, names):
            return (
                (*place, KEYS.get(ast.unparse(key)) or key.value)
                if place[0] in OF_PRECISIONS and not place[1:]
                else place
            )
    return None


KEYS = {"precision": "${key}", "asked.floating": "${item.floating}"}
OF_PRECISIONS = {"precisions": PrecisionParams, "search": SearchParams, "mix": MixParams}


def section_at(place):
    """Return the class of the section at a place; None where there is none."""
    section = OF_PRECISIONS.get(place[0], Params) if place[1:] else Params
    for part in place[2:] if section is not Params else place:
        names = {field.alias or name: field.annotation for name, field in getattr(section, "model_fields", {}).items()}
        section = names.get(part)
    return section


PARAMS = VALID
PLACES = OF_STAGE | OF_PRECISION


def single(place):
    """Return the single parameters that stand at a place of params.yaml, as int8 has them."""
    if place.startswith("mix.${key}"):
        return {"mix.${key}"}  # there is none by default
    place = place.replace("${key}", "int8").replace("${item.floating}", "int8")
    if place == ALL:
        return {each for section in PARAMS for each in single(section)}
    content = PARAMS
    for part in place.split("."):
        content = content[part]
    return {each for name in content for each in single(f"{place}.{name}")} if isinstance(content, dict) else {place}


@pytest.mark.parametrize("name", sorted(BY_FILE.keys() - {"machine"}))
def test_a_stage_lists_exactly_the_parameters_that_it_reads(name):
    beside = functions_beside(name)
    found = parameters_read(beside[name], beside) - {"cluster"}  # which changes no result
    read = {part for place in found for part in USED_PARTS.get((name, place), {place})}
    if name == "convert":
        read.add("precisions.${key}.from")  # dvc.yaml itself reads it, to choose the dependency
    places = (
        place.format(key="${key}", halves="${key}", floating="${item.floating}") for place in PLACES.get(name, ())
    )
    listed = {each for place in places for each in single(place)}
    assert listed == {each for place in read for each in single(place)}


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("samples = params.samples\nuse(samples)", {"samples"}),
        ("use(params)", {"*"}),
        ("beside(params)", {"build.tf32"}),
        ("asked, here = params.benchmark, 1\nuse(asked.seconds)", {"benchmark.seconds"}),
        ("asked, here = params.benchmark, 1\nuse(asked.seconds, asked)", {"benchmark.seconds", "benchmark"}),
        ("use(params.benchmark.seconds, params.model.scores)", {"benchmark.seconds", "model.scores"}),
        ("use(params.model.is_onnx)", {"model"}),
        ("sizes = params.build.profile.batch\nuse(sizes.min)", {"build.profile.batch.min"}),
        ("threads = params.inference.on(cores)", {"inference"}),
        ("use(params.benchmark.baselines[0])", {"benchmark.baselines"}),
        ("use(params.precisions[precision].keep)", {"precisions.${key}.keep"}),
        ("use(params.precisions['int8'].made_from)", {"precisions.int8.from"}),
        (
            "asked = params.mix[precision]\nuse(params.precisions[asked.floating], asked)",
            {"precisions.${item.floating}", "mix.${key}", "mix.${key}.floating"},
        ),
        ("use(params.precisions)", {"precisions"}),
        ("record = Machine.read(machine)", set()),
    ],
)
def test_reading_parameters_is_recognized(code, wanted):
    beside = {"beside": ast.parse("def beside(params): use(params.build.tf32)").body[0]}
    assert parameters_read(ast.parse(code), beside) == wanted


def all_sections(base=Section):
    """Yield every class that is a section of params.yaml."""
    for each in base.__subclasses__():
        yield from (each, *all_sections(each))


def test_params_yaml_is_read_by_the_runner_of_stages_and_by_commands_only():
    sections = {each.__name__ for each in all_sections()}
    found = {}
    for path in sorted((ROOT / "enginewright").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(ast.Attribute(ast.Name(name), "read" | "read_at" | "read_for")) if name in sections:
                    found.setdefault(path.relative_to(ROOT).as_posix(), set()).add(name)
    assert found == {name: {"Params"} for name in READERS}


def test_every_stage_but_the_gate_can_have_a_time_limit():
    assert {*get_args(TimedStage)} == {name.partition("@")[0] for name in STAGES} - {"gate", "machine"}


@pytest.mark.parametrize("section", PARAMS)
def test_every_section_of_the_parameters_is_listed_by_a_stage(section):
    listed = {place.partition(".")[0] for stage, places in PLACES.items() if stage != "report" for place in places}
    # machine reads the others, and the stages after it in machine.json and task.json; cluster and timeouts change none
    assert section in listed or section in ("runtime", "task", "cluster", "timeouts")


def written_for(folder, text):
    """Return what `machine` writes for a params.yaml with this text, by file."""
    (folder / PARAMS_FILE).write_text(text)
    write_parameters(Params.read(folder / PARAMS_FILE), folder / "made")
    return {
        path.relative_to(folder / "made").as_posix(): path.read_text() for path in (folder / "made").rglob("*.json")
    }


def test_what_is_left_out_and_what_is_given_as_it_is_by_default_are_the_same(tmp_path):
    before = written_for(tmp_path, "{}")
    assert {of_parameters(name) for name in STAGES} - {"gate.json", "machine.json"} <= {
        *before, "mix/int8.json", "mix/fp16.json", "search/fp16.json", "rescue/fp16.json"
    }  # fmt: skip
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "made").rglob("*.json")}
    assert written_for(tmp_path, "precisions: {fp32: , fp16: , bf16: , int8: {from: searched}}\n") == before
    assert {path: path.stat().st_mtime_ns for path in times} == times, "nothing was written anew"
    after = written_for(tmp_path, "precisions: {fp32: , fp16: , bf16: , int8: {thresholds: {cosine: 0.9}}}\n")
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"search/int8.json", "validate/int8.json", "report.json"}


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("runtime: auto  # mine\n", "precisions.fp32, precisions.fp16, precisions.bf16, precisions.int8, search.int8"),
        ("precisions: {int8: , fp16: {from: simplified}}  # mine\n", "precisions.int8, search.int8"),
        ("# mine\nprecisions: {fp32: {from: simplified}}\n", None),
        (
            "precisions:\n  best:\n  fp32: {from: simplified}\n  int8: {from: calibrated}  # mine\n",
            "precisions.best, mix.best",
        ),
    ],
)
def test_what_dvc_reads_itself_is_written_into_a_short_file(tmp_path, text, added):
    """With it, DVC knows all stages; before, it would fail, or leave out the search."""
    file = tmp_path / PARAMS_FILE
    file.write_text(text)
    params = Params.read(file)
    said = complete_for_dvc(params, file)
    assert said == (added and f"{file}: wrote the defaults of {added}, which dvc.yaml reads from there")
    assert Params.read(file) == params
    assert complete_for_dvc(params, file) is None
    assert "# mine" in file.read_text()
    (tmp_path / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    plan = YAML(typ="safe").load(tmp_path / "dvc.yaml")
    stages = DataResolver(Repo(str(tmp_path), uninitialized=True), str(tmp_path), plan).resolve()["stages"]
    keys = {(group, key) for group, _, key in (name.partition("@") for name in stages)}
    assert {key for group, key in keys if group == "convert"} == params.precisions.keys()
    assert {key for group, key in keys if group == "search"} == params.search.keys()
    assert {key for group, key in keys if group == "mix"} == params.mix.keys()


def test_a_model_registry_finds_the_engines_of_a_version(tmp_path, monkeypatch):
    repo = Repo(ROOT)
    (artifacts,) = repo.artifacts.read().values()
    assert {name: one.path for name, one in artifacts.items()} == {"engines": "artifacts/engines", "bundles": "bundles"}
    assert not repo.dvcignore.is_ignored_dir(str(ROOT / "bundles"))
    made = "cmd: 'mkdir -p artifacts/engines/${item} && echo ${item} > artifacts/engines/${item}/engine'"
    stages = f"{{build: {{foreach: [fp32, int8], do: {{{made}, outs: ['artifacts/engines/${{item}}']}}}}}}"
    registry, git = tmp_path / "registry", ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    registry.mkdir()
    monkeypatch.chdir(registry)
    subprocess.run([*git, "init", "--quiet"], check=True)
    Path("dvc.yaml").write_text(f"stages: {stages}\nartifacts: {{engines: {{path: artifacts/engines}}}}\n")
    with Repo.init() as repo:
        repo.reproduce()
    for command in (
        ["add", "."],
        ["commit", "-qm", "a run"],
        ["tag", "-am", "as gto register does", "engines@v1.0.0"],
    ):
        subprocess.run([*git, *command], check=True)
    assert Artifacts.get(str(registry), "engines", version="v1.0.0", out=str(tmp_path / "fetched"))
    assert (tmp_path / "fetched/int8/engine").read_text() == "int8\n"
