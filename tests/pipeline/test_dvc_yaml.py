"""dvc.yaml against the stages: what a stage reads is what DVC watches for it."""

import ast
import re
from functools import reduce
from pathlib import PurePosixPath
from typing import NamedTuple

import pytest
from dvc.parsing import DataResolver
from dvc.repo import Repo
from ruamel.yaml import YAML
from support.params import VALID
from support.paths import ROOT
from support.small_project import planned_stages

from enginewright.core.params.all import Params, Section  # and with it every section
from enginewright.core.params.measuring import TimeoutParams
from enginewright.core.params.section import PARAMS_FILE
from enginewright.pipeline.parameters import OF_PRECISION, OF_STAGE, complete_for_dvc, write_parameters

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
    ("simplify", "build.profile"): BATCH_ENDS | OTHER_AXES,
    ("reference", "build.profile.batch"): BATCH_ENDS,
    ("weights", "model"): {"model.source", "model.arguments"},  # which output holds scores changes no weights
}
ALL = "*"


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


def tree_of(name):
    return ast.parse((ROOT / "stages" / f"{name.partition('@')[0]}.py").read_text())


def covers(one, other):
    """Tell whether they are the same, or one is a folder that holds the other."""
    return PurePosixPath(other).is_relative_to(one) or PurePosixPath(one).is_relative_to(other)


def test_the_plan_is_short_enough_to_be_read():
    lines = (ROOT / "dvc.yaml").read_text().splitlines()
    assert len(lines) < LONGEST
    assert max(map(len, lines)) <= 120


# Code.


def test_there_is_a_stage_for_every_file_and_a_file_for_every_stage():
    files = {path.stem for path in (ROOT / "stages").glob("*.py") if not path.stem.startswith("__")}
    assert BY_FILE.keys() == files


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
    function = next(node for node in tree_of(name).body if isinstance(node, ast.FunctionDef) and node.name == plain)
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


def sections(base=Section):
    """Return the classes that read a section of params.yaml, by name."""
    return {each.__name__: each for child in base.__subclasses__() for each in (child, *sections(child).values())}


SECTIONS = sections()
NAMED = {"SearchParams": "search", "MixParams": "mix"}  # sections with one for each precision that has it


def section_read(node):
    """Return the class and the place of the section that a call such as BuildParams.read() reads; else None."""
    match node:
        case ast.Call(ast.Attribute(ast.Name(name), "read")) if name in SECTIONS:
            return SECTIONS[name], SECTIONS[name].place or ALL
        case ast.Call(ast.Attribute(ast.Name(name), "read_for")) if name in SECTIONS:
            return SECTIONS[name], f"{NAMED.get(name, 'precisions')}.${{key}}"
        case ast.Call(ast.Attribute(ast.Name(name), "read_at"), [ast.Constant(place)]) if name in SECTIONS:
            return SECTIONS[name], place
    return None


def parameters_read(tree):
    """Return each place of params.yaml that the code reads. A section that it hands on is read as a whole."""
    read, in_part = set(), set()
    for node in ast.walk(tree):
        found = isinstance(node, ast.Attribute) and section_read(node.value)
        if found and node.attr in found[0].model_fields:  # and no method, such as InferenceParams.on
            in_part.add(node.value)
            read.add(node.attr if found[1] == ALL else f"{found[1]}.{node.attr}")
    return read | {found[1] for node in ast.walk(tree) if node not in in_part and (found := section_read(node))}


PARAMS = VALID
PLACES = OF_STAGE | OF_PRECISION


def single(place):
    """Return the single parameters that stand at a place of params.yaml, as int8 has them."""
    if place == "mix.${key}":
        return {place}  # there is none by default
    place = place.replace("${key}", "int8").replace("${item.floating}", "int8")
    if place == ALL:
        return {each for section in PARAMS for each in single(section)}
    content = PARAMS
    for part in place.split("."):
        content = content[part]
    return {each for name in content for each in single(f"{place}.{name}")} if isinstance(content, dict) else {place}


@pytest.mark.parametrize("name", sorted(BY_FILE.keys() - {"machine"}))
def test_a_stage_lists_exactly_the_parameters_that_it_reads(name):
    read = {part for place in parameters_read(tree_of(name)) for part in USED_PARTS.get((name, place), {place})}
    if name == "convert":
        read.add("precisions.${key}.from")  # dvc.yaml itself reads it, to choose the dependency
    places = (place.format(key="${key}", floating="${item.floating}") for place in PLACES.get(name, ()))
    listed = {each for place in places for each in single(place)}
    assert listed == {each for place in read for each in single(place)}


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("samples = Params.read().samples", {"samples"}),
        ("params = Params.read()\nuse(params.build.profile)", {"*"}),
        ("use(Params.read())", {"*"}),
        ("params, here = BenchmarkParams.read(), 1\nuse(params.seconds)", {"benchmark"}),
        ("use(BenchmarkParams.read().seconds, ModelParams.read().scores)", {"benchmark.seconds", "model.scores"}),
        ("use(ModelParams.read().is_onnx)", {"model"}),
        ("sizes = Profile.read().batch", {"build.profile.batch"}),
        ("threads = InferenceParams.read().on(cores)", {"inference"}),
        ("keep = PrecisionParams.read_for(precision).keep", {"precisions.${key}.keep"}),
        ("use(PrecisionParams.read_for(precision))", {"precisions.${key}"}),
        ("use(Range.read_at('build.profile.height').min)", {"build.profile.height.min"}),
        ("record = Machine.read(machine)", set()),
    ],
)
def test_reading_parameters_is_recognized(code, wanted):
    assert parameters_read(ast.parse(code)) == wanted


def test_parameters_are_read_by_stages_and_commands_only():
    readers = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "enginewright").rglob("*.py"))
        if any(map(section_read, ast.walk(ast.parse(path.read_text()))))
    ]
    assert sorted(readers) == sorted(
        [
            "enginewright/bundle/write.py",
            "enginewright/cli/commands/compare.py",
            "enginewright/cli/machine_checks.py",
            "enginewright/cli/commands/keep.py",
            "enginewright/cli/commands/upgrade.py",
            "enginewright/core/params/edit.py",
            "enginewright/cli/commands/reduce.py",
            "enginewright/targets/here.py",
            "enginewright/targets/ray_cluster.py",
            "enginewright/targets/run.py",
            "enginewright/pipeline/__main__.py",
            "enginewright/nightly/night.py",
        ]
    )


def test_every_stage_but_the_gate_can_have_a_time_limit():
    limited = {field.alias or name for name, field in TimeoutParams.model_fields.items()}
    assert limited == {name.partition("@")[0] for name in STAGES} - {"gate", "machine"}


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
