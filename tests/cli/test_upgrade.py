"""`enginewright upgrade`: a project follows a newer version, and its owner's changes stay."""

import shutil
import subprocess
import sys

import pytest
from packaging.version import Version
from support.command import enginewright
from support.warm_python import warm_python

from enginewright import __version__
from enginewright.cli.commands import upgrade as upgrading
from enginewright.cli.commands.upgrade import upgrade_project
from enginewright.cli.project import merge as merging
from enginewright.cli.project.layout import FILES
from enginewright.cli.project.merge import in_pieces, joined, lines_of, runs_again
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params

PARAMS, PLAN = (FILES / "params.yaml").read_text(), (FILES / "pipeline.yaml").read_text()
# What an earlier version had in place of some lines.
EARLIER_PARAMS = {
    "  seconds: 1.5            # per contender": "  seconds: 2              # for each contender",
    "      agreement: 0.97 ": "      top1_agreement: 0.97 ",
}
EARLIER_PARAMS |= {line: "" for line in PARAMS.splitlines(keepends=True) if "must_be_sure" in line}
EARLIER_PLAN = {"    params: [inference]\n": "    params: [inference, validation]\n"}


def changed(text, changes):
    for old, new in changes.items():
        text = text.replace(old, new)
    return text


@pytest.fixture(scope="module")
def laid_out(tmp_path_factory):
    """A project of an earlier version, as it was laid out."""
    root = tmp_path_factory.mktemp("laid-out")
    subprocess.run(["git", "init", "-q", root], check=True)
    assert enginewright("new", "--model", "resnet18", cwd=root).returncode == 0
    kept = root / ".enginewright"
    for name, path, earlier in (("params", "params", EARLIER_PARAMS), ("pipeline", "dvc", EARLIER_PLAN)):
        for file in (kept / f"{name}.yaml", root / f"{path}.yaml"):
            file.write_text(changed(file.read_text(), earlier))
    (kept / "version").write_text("0.1.0\n")
    return root


@pytest.fixture
def project(laid_out, tmp_path):
    return shutil.copytree(laid_out, tmp_path / "project")


def edit(file, changes):
    before = file.read_text()
    assert all(old in before for old in changes)
    file.write_text(changed(before, changes))


def files_of(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts}


def test_an_upgrade_that_was_cut_off_at_any_file_is_finished_by_the_next(laid_out, tmp_path, monkeypatch):
    undisturbed = shutil.copytree(laid_out, tmp_path / "undisturbed")
    upgrade_project(undisturbed, dry_run=False)
    wanted = {path.relative_to(undisturbed): data for path, data in files_of(undisturbed).items()}
    whole = upgrading.new_file
    for writes in range(len(wanted)):
        project, left = shutil.copytree(laid_out, tmp_path / f"after-{writes}"), iter(range(writes))

        def new_file(path, left=left):
            next(left)  # no more of them: killed here
            return whole(path)

        monkeypatch.setattr(upgrading, "new_file", new_file)
        try:
            upgrade_project(project, dry_run=False)
        except StopIteration:
            monkeypatch.setattr(upgrading, "new_file", whole)
            upgrade_project(project, dry_run=False)
        else:
            break
        assert {path.relative_to(project): data for path, data in files_of(project).items()} == wanted
    assert writes > 3


def test_a_project_follows_a_newer_version_and_its_owners_changes_stay(project):
    mine = {
        "  spot_samples: 64 ": "  # eight are enough for us\n  spot_samples: 8 ",  # beside a new parameter
        "  seconds: 2              # for each": "  seconds: 9              # for each",
        "top1_agreement: 0.97 ": "top1_agreement: 0.5 ",
    }
    edit(project / "params.yaml", mine)
    edit(project / "dvc.yaml", {"  gate:": "  upload:\n    cmd: make upload\n\n  gate:"})
    shutil.rmtree(project / "data/traces")  # which an earlier version did not have
    before = files_of(project)
    tried = enginewright("upgrade", "--dry-run", cwd=project)
    assert files_of(project) == before
    done = enginewright("upgrade", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    assert tried.stdout.splitlines()[:-1] == done.stdout.splitlines()[:-1]
    for said in (
        f"enginewright 0.1.0 -> {__version__}, in {project}\n",
        "+  must_be_sure: false     # true: fail, too",
        "new in params.yaml: validation.must_be_sure: false\n",
        "renamed in params.yaml: precisions.int8.thresholds.top1_agreement is precisions.int8.thresholds.agreement\n",
        "kept in params.yaml: benchmark.seconds: 9, where the default is now 1.5\n",
        "runs again: all, as nothing has run here yet\n",
    ):
        assert said in done.stdout
    text = (project / "params.yaml").read_text()
    assert "  # eight are enough for us\n  spot_samples: 8 " in text
    assert "  seconds: 9              # per contender" in text
    params = Params.read(project / "params.yaml")
    assert (params.precisions["int8"].thresholds.agreement, params.validation.spot_samples) == (0.5, 8)
    plan = (project / "dvc.yaml").read_text()
    assert plan == PLAN.replace("  gate:", "  upload:\n    cmd: make upload\n\n  gate:")
    assert (project / ".enginewright/params.yaml").read_text() == PARAMS
    assert (project / "data/traces/.gitkeep").exists()
    again = enginewright("upgrade", cwd=project)
    assert again.stdout == f"{project} is of enginewright {__version__} already\n"


def test_what_runs_again_is_what_can_have_changed(project):
    """The stage `machine` says what is new of code and packages; the rest follows from the files."""
    made = [f"--{name}=artifacts/{name}.json" for name in ("machine", "target", "dialect", "tools", "task")]
    data = [f"--{name}=data/{name}" for name in ("models", "weights", "calibration", "plugins")]
    (project / "artifacts/code").mkdir(parents=True)
    machine = [warm_python() / "python3", "-m", "stages", "machine", *data, *made, "--code=artifacts/code"]
    subprocess.run(machine, cwd=project, check=True, capture_output=True)
    edit(project / "artifacts/code/calibrate.json", {"enginewright/": "another/"})
    files = {name: (project / name).read_text() for name in ("dvc.yaml", "machine/dvc.yaml", "params.yaml")}
    assert runs_again(project, files)[0] == ["calibrate"]
    edit(project / "artifacts/code/calibrate.json", {"another/": "enginewright/"})
    assert runs_again(project, files) == ([], [])
    files["dvc.yaml"] = changed(files["dvc.yaml"], {"params: [inference, validation]": "params: [inference]"})
    files["params.yaml"] = changed(files["params.yaml"], {"  method: auto": "  method: max"})
    first, followers = runs_again(project, files)
    every = ("fp32", "fp16", "bf16", "int8")
    assert first == ["calibrate", *(f"trace@{each}" for each in every), "report"]
    assert followers == [
        "rescue@int8",
        "search@int8",
        *(f"{stage}@int8" for stage in ("convert", "build", "validate", "benchmark")),
        "race",
        "gate",
    ]


def test_a_network_above_the_project_is_found_there(project):
    """As it is by the stages, and after the libraries: a file called as one of these does not stand in for it."""
    (project / "nets.py").write_text("def small(): ...\n")
    assert enginewright("new", "inner", "--model", "nets:small", cwd=project).returncode == 0
    (project / "numpy.py").write_text("raise SystemExit\n")
    folder = project / "inner"
    files = {name: (folder / name).read_text() for name in ("dvc.yaml", "machine/dvc.yaml", "params.yaml")}
    assert "weights" in runs_again(folder, files)[0]


def test_what_its_owner_deleted_does_not_come_back(project):
    workflow = project / ".github/workflows/enginewright.yml"
    workflow.unlink()
    for _ in range(2):
        done = enginewright("upgrade", cwd=project)
        assert (done.returncode, done.stderr) == (0, "")
        assert "enginewright.yml" not in done.stdout
        assert not workflow.exists()


def test_the_lines_of_parameters_are_taken_apart_and_put_together_unchanged():
    lines = list(lines_of(PARAMS))
    assert joined(in_pieces(lines), {line.name: line.column for line in lines if line.place}) == PARAMS
    odd = list(lines_of('a: "x # y"  # why\nb: c#d\n# d: e\n  - f\n'))
    assert [(line.name, line.value, line.comment) for line in odd] == [
        ("a", ' "x # y"', "# why"), ("b", " c#d", ""), ("", "", ""), ("", "", ""),
    ]  # fmt: skip


BASE = "a:\n  one: 1  # first\n  two: 2\nb:\n  three: 3\nc: 4\n"


@pytest.mark.parametrize(
    ("mine", "new", "merged"),
    [
        ({}, {"one: 1  # first": "one: 7  # the first"}, BASE.replace("one: 1  # first", "one: 7  # the first")),
        ({"one: 1 ": "one: 5 "}, {"# first": "# the first"}, BASE.replace("one: 1  # first", "one: 5  # the first")),
        ({"one: 1 ": "one: 5 "}, {"one: 1 ": "one: 7 "}, BASE.replace("one: 1 ", "one: 5 ")),
        ({"two: 2": "two: 5"}, {"two: 2": "two: 2\n  more: 9"}, BASE.replace("two: 2", "two: 5\n  more: 9")),
        ({"b:\n  three: 3\n": ""}, {"three: 3": "three: 8\n  more: 9"}, BASE.replace("b:\n  three: 3\n", "")),
        ({"c: 4": "c: 4\nmine: 5"}, {"two: 2": "two: 3"}, BASE.replace("two: 2", "two: 3") + "mine: 5\n"),
        ({"c: 4": "c: 5"}, {"c: 4\n": "", "three: 3": "three: 3\n  moved: 4  # it"},
         BASE.replace("c: 4\n", "").replace("three: 3", "three: 3\n  moved: 5  # it")),
        ({"two: 2": "two: 5"}, {"two: 2": "second: 2", "c: 4\n": "", "three: 3": "three: 3\n  moved: 4"},
         changed(BASE, {"two: 2": "second: 5", "c: 4\n": "", "three: 3": "three: 3\n  moved: 4"})),
        ({"c: 4": "c: 4\n# mine"}, {"c: 4": "c: 4\ne: 7"}, BASE + "e: 7\n# mine\n"),
        ({"c: 4": "c: 4\ne: 5"}, {"c: 4": "c: 4\ne: 7"}, BASE + "e: 5\n"),
        ({"b:": "#begin a\n#mid b\nb:", "c: 4": "#end c\nc: 4"}, {"two: 2": "two: 3"},
         changed(BASE, {"b:": "#begin a\n#mid b\nb:", "c: 4": "#end c\nc: 4", "two: 2": "two: 3"})),
        ({}, {"c: 4\n": ""}, BASE.replace("c: 4\n", "")),
        ({"c: 4": "c: 5"}, {"c: 4\n": ""}, BASE.replace("c: 4", "c: 5")),  # which Params.read then refuses by its name
    ],
)  # fmt: skip
def test_parameters_are_merged_one_by_one(monkeypatch, tmp_path, mine, new, merged):
    renamed = {"c": "b.old", "a.two": "a.second"} if "moved" in str(new) or "second" in str(new) else {}
    monkeypatch.setattr(merging, "RENAMED", {"1.0": {"a.one": "a.lost"}, "10.0": {"b.old": "b.moved"}, "2.0": renamed})
    got = merging.merge_params(changed(BASE, mine), BASE, changed(BASE, new), Version("1.0"), tmp_path / "params.yaml")
    assert got.text == merged


def test_a_new_parameter_that_has_no_place_among_the_owners_changes_is_named(tmp_path):
    mine = changed(BASE, {"b:\n  three: 3\nc: 4\n": ""})
    with pytest.raises(EnginewrightError, match=r"cannot be merged at e, .*nothing was changed"):
        merging.merge_params(mine, BASE, BASE + "e: 7\n", Version("1.0"), tmp_path / "params.yaml")


def write(name, text):
    return lambda root: (root / name).write_text(text)


def both_changed(root):
    edit(root / "dvc.yaml", {"    params: [inference, validation]\n": "    params: [inference, build]\n"})


@pytest.mark.parametrize(
    ("prepare", "sentence"),
    [
        (write(".enginewright/version", "9.0\n"), "is of enginewright 9.0, and"),
        (lambda root: (root / "params.yaml").unlink(), "params.yaml is missing: take it back from git"),
        (write(".enginewright/version", "new\n"), ".enginewright/version holds no version: take it back from git"),
        (lambda root: (root / ".enginewright/version").unlink(), "is no project that `enginewright new` laid out"),
        (both_changed, "dvc.yaml cannot be merged: you and this version changed `params: [inference, build]`"),
        (write("params.yaml", "runtime: [\n"), "params.yaml is not valid YAML: line"),
        (lambda root: edit(root / "params.yaml", {"  opset: 20": "  opset: 20\n  gone: 1"}),
         "params.yaml cannot be merged: export.gone is not a parameter"),
        (lambda root: subprocess.run(["rm", "-r", root / ".git"], check=True), "is in no git repository"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(project, prepare, sentence):
    prepare(project)
    before = files_of(project)
    done = enginewright("upgrade", cwd=project)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert files_of(project) == before


def test_a_project_of_a_later_version_does_not_run(project):
    (project / ".enginewright/version").write_text("9.0\n")
    for module in ("enginewright.pipeline", "stages"):
        arguments = ["machine", *(f"--{name}=x" for name in MACHINE)] if module == "stages" else []
        done = subprocess.run([sys.executable, "-m", module, *arguments], cwd=project, capture_output=True, text=True)
        assert done.returncode == 1
        assert f"this project is of enginewright 9.0, and {__version__} is installed: pip install" in done.stderr


MACHINE = ("models", "weights", "calibration", "plugins", "machine", "target", "dialect", "tools", "task", "code")
