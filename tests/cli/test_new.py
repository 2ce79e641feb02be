"""`enginewright new`: the pipeline in the user's own repository."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
from PIL import Image
from ruamel.yaml import YAML
from support.checkout import Project, ran
from support.command import enginewright
from support.paths import ROOT

from enginewright.cli.choices import Choices, take
from enginewright.cli.commands.new import place_of_one
from enginewright.cli.layout import FILES, TARGETS, planned_stages, text_of
from enginewright.core.installing import elsewhere
from enginewright.core.params.all import Params

GUESSED = {
    "preprocessing": {
        **{"resize": 256, "crop": 224, "interpolation": "bilinear", "color": "rgb", "divide_by": 255},
        **{"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
}
SAME = {"pipeline.yaml": "dvc.yaml", "machine.yaml": "machine/dvc.yaml"}


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "nets.py").write_text("def small(): ...\n")
    for number in range(12):
        path = tmp_path / "photos" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(path)
    return tmp_path


def new(repository, *arguments):
    done = enginewright("new", *arguments, cwd=repository)
    assert done.returncode == 0, done.stderr
    return done.stdout


def plan(*stages):
    return lambda root: (root / "dvc.yaml").write_text(json.dumps({"stages": {name: {"cmd": "x"} for name in stages}}))


def of_version(version):
    def prepare(root):
        (root / ".enginewright").mkdir()
        (root / ".enginewright/version").write_text(version)

    return prepare


@pytest.mark.parametrize("name", SAME)
def test_there_is_one_pipeline_and_one_text(name):
    assert (FILES / name).samefile(ROOT / SAME[name])


def test_a_project_with_a_network_and_images_of_its_own_is_laid_out(repository):
    said = new(repository, "--model", "nets:small", "--images", "photos", "--size", "28")
    assert "made dvc.yaml\n" in said
    assert said.endswith(
        f"Next, in {repository}: look at params.yaml, then make repro\n"
        "To keep it: dvc add data/images/photos && git add --all && git commit\n"
    )
    params = Params.read(repository / "params.yaml")
    assert (params.model.source, params.weights.source) == ("nets:small", "given")
    assert (params.samples.source, params.samples.preprocessing.crop) == ("data/images/photos", (28, 28))
    assert (params.samples.validation, params.samples.calibration, params.samples.training) == (6, 3, 0)
    assert len(list((repository / "data/images/photos").rglob("*.png"))) == 12
    assert (repository / "dvc.yaml").read_text() == (ROOT / "dvc.yaml").read_text()
    assert "# how many samples engines are judged on" in (repository / "params.yaml").read_text()
    workflow = YAML(typ="safe").load(repository / ".github/workflows/enginewright.yml")
    assert f'pip install --quiet "{elsewhere("pipeline")}"' in str(workflow)
    text = (repository / "params.yaml").read_text()
    assert len(text.splitlines()) <= 40
    assert max(map(len, text.splitlines())) <= 120
    assert "working-directory': '.'" in str(workflow)
    again = new(repository, "--model", "nets:small", "--task", "regression")
    assert "made" not in again
    assert "-task: classification" in again, "what was asked for now is shown, and the file stays"
    assert "+task: regression" in again
    assert "nets:small" not in again
    assert Params.read(repository / "params.yaml") == params


@pytest.mark.parametrize("has_remote", [True, False])
def test_a_runner_gets_the_users_files_from_the_dvc_remote(repository, has_remote, tmp_path_factory):
    """And where there is none, the night says which file is not there."""
    folder = tmp_path_factory.mktemp("runner")

    def run(*command, cwd=repository):
        environment = ["env", "GIT_CONFIG_COUNT=2", "GIT_CONFIG_KEY_0=user.name", "GIT_CONFIG_VALUE_0=a"]
        environment += ["GIT_CONFIG_KEY_1=user.email", "GIT_CONFIG_VALUE_1=a@b"]
        subprocess.run([*environment, *command], cwd=cwd, check=True, capture_output=True)

    new(repository, "--model", "nets:small", "--images", "photos", "--size", "28")
    run("dvc", "add", "data/images/photos")
    if has_remote:
        run("dvc", "remote", "add", "--default", "store", folder / "store")
        run("dvc", "push", "data/images/photos.dvc")
    run("git", "add", "--all")
    run("git", "commit", "--message", "a project")
    run("git", "clone", repository, folder / "clone")
    workflow = YAML(typ="safe").load(folder / "clone/.github/workflows/enginewright.yml")
    steps = [step.get("run", "") for step in workflow["jobs"]["nightly"]["steps"]]
    for command in steps[steps.index("make nightly PYTHON=python") - 2 :][:2]:
        run("bash", "-ec", command, cwd=folder / "clone")
    assert len([*(folder / "clone/data/images").rglob("*.png")]) == 12 * has_remote


def test_a_project_may_be_a_folder_of_a_larger_repository(repository):
    (repository / "dvc.yaml").write_text("stages: {train: {cmd: make model}}\n")
    (repository / ".gitignore").write_text("*.log")
    new(repository, "deploy")
    assert (repository / "deploy/.dvc").is_dir()
    workflow = (repository / ".github/workflows/enginewright-deploy.yml").read_text()
    assert "working-directory: deploy\n" in workflow
    assert "path: deploy/.dvc/cache\n" in workflow
    assert (repository / ".gitignore").read_text().splitlines() == ["*.log", *text_of("ignored").splitlines()]
    assert "/artifacts/" in (repository / "deploy/.gitignore").read_text()


@pytest.mark.parametrize(
    ("model", "params", "copies"),
    [
        (Choices(), {}, {}),
        (
            Choices(model="resnet50", task="classification"),
            {"task": "classification", "model": {"source": "resnet50"}},
            {},
        ),
        (Choices(weights="best.pt"), {"weights": {"source": "data/weights/best.pt"}}, {"data/weights/best.pt"}),
        (
            Choices(model="timm:vit_tiny"),
            {"model": {"source": "timm:vit_tiny"}, "weights": {"source": "pretrained"}, "samples": GUESSED},
            {},
        ),
        (
            Choices(model="transformers:bert"),
            {
                "model": {"source": "transformers:data/models/bert"},
                "weights": {"source": "given"},
                "samples": GUESSED,
            },
            {"data/models/bert"},
        ),
        (
            Choices(model="net.onnx"),
            {"model": {"source": "data/models/net.onnx"}, "weights": {"source": "given"}, "samples": GUESSED},
            {"data/models/net.onnx"},
        ),
    ],
)
def test_what_the_user_has_becomes_parameters(repository, monkeypatch, model, params, copies):
    monkeypatch.chdir(repository)
    monkeypatch.setattr("enginewright.cli.preparation.find_spec", lambda name: None)  # timm is not installed
    for name in ("best.pt", "net.onnx"):
        (repository / name).touch()
    (repository / "bert").mkdir()
    taken = take(model, repository)
    assert (taken.params, {path.as_posix() for path in taken.copies}) == (params, set(copies))


@pytest.mark.parametrize(
    ("prepare", "arguments", "sentence"),
    [
        (lambda root: shutil.rmtree(root / ".git"), (), "is in no git repository"),
        (plan("train"), (), "dvc.yaml is another pipeline: take a folder of its own, such as `enginewright new "),
        (plan("export", "build"), (), "dvc.yaml is another pipeline, whose stages build, export are called as ours: "),
        (of_version("0.0.1"), (), "is of enginewright 0.0.1, and "),
        (of_version("99.0"), (), "is of enginewright 99.0, and "),
        (lambda root: (root / "stages.py").touch(), (), "stages is a package, and the pipeline has one of this name"),
        (lambda root: None, ("--model", "nets.other:small"), "there is no nets/other.py in "),
        (lambda root: None, ("--model", "transformers:lost"), "transformers: lost does not exist; give a folder"),
        (lambda root: None, ("--name", "data"), "--name data: take letters, digits, - and _, and none of artifacts, "),
        (lambda root: None, ("--name", "all"), "--name all: take letters"),
        (lambda root: None, ("--name", "../a"), "--name ../a: take letters, digits, - and _, and none of artifacts, "),
        (lambda root: None, ("--model", "resnet5"), "no model of torchvision; did you mean 'resnet"),
        (lambda root: None, ("--model", "lost.onnx"), "--model lost.onnx does not exist; give an ONNX file"),
        (lambda root: None, ("--weights", "lost.pt"), "--weights lost.pt does not exist; give train, pretrained"),
        (lambda root: (root / "none").mkdir(), ("--images", "none"), "--images none holds no images"),
        (lambda root: None, ("--task", "regresion"), "there is no task 'regresion'; did you mean 'regression'"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_nothing_is_written(repository, prepare, arguments, sentence):
    prepare(repository)
    before = sorted(repository.rglob("*"))
    done = enginewright("new", *arguments, cwd=repository)
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(repository.rglob("*")) == before


def test_models_beside_each_other_share_what_they_have_in_common(repository):
    """The second one's factory is in the folder above, and its samples are those that the first has made."""
    (repository / "nets.py").write_text(NETS)
    new(repository, "--model", "nets:small", "--images", "photos", "--size", "28")
    said = new(repository, "--name", "wide", "--model", "nets:wide", "--images", "photos", "--size", "28")
    assert said.endswith(f"wide: look at params.yaml, then make repro\n`make all` in {repository} runs all models\n")
    first, second = Project(repository), Project(repository / "wide")
    for project, stage in ((first, "samples"), (second, "weights")):
        project.environment["PYTHONPATH"] = str(ROOT)
        done = project.repro(stage)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "Stage 'samples' is cached - skipping run, checking out outputs" in done.stdout
    assert ran(done) == {"weights"}
    assert "nets.py" in json.loads((repository / "wide/artifacts/code/weights.json").read_text())["model"]
    assert not (repository / "artifacts/weights").exists()
    planned = subprocess.run(["make", "-n", "all"], cwd=repository, capture_output=True, text=True).stdout
    commands = re.findall(r"(-m dvc repro|-C wide repro)", planned)
    assert commands == ["-m dvc repro", "-C wide repro", "-m dvc repro"]
    for name in ("enginewright", "enginewright-wide"):
        workflow = (repository / f".github/workflows/{name}.yml").read_text()
        assert "path: .dvc/cache\n" in workflow, "they share it"


NETS = """
from torch import nn


def small(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 28 * 28, width), nn.Linear(width, 2))


def wide():
    return small(8)
"""


def test_a_file_of_the_same_name_never_stands_in_for_another(repository):
    for name in "abc":
        (repository / name).mkdir()
        (repository / name / "best.pt").write_text(name)
    said = [
        new(repository, *named, "--weights", f"{folder}/best.pt", "--images", f"photos/{images}")
        for named, folder, images in (((), "a", "a"), (("--name", "two"), "b", "a"), (("--name", "three"), "a", "a"))
    ]
    shutil.move(repository / "photos/b", repository / "c/a")
    new(repository, "--name", "four", "--weights", "a/best.pt", "--images", "c/a")
    assert (repository / "two/data/weights/two-best.pt").read_text() == "b"
    assert (repository / "data/weights/best.pt").read_text() == "a"
    assert "best.pt" not in said[2], "the same file is not copied again"
    sources = [Params.read(repository / name / "params.yaml") for name in (".", "two", "three", "four")]
    assert [params.weights.source for params in sources] == [
        f"data/weights/{name}best.pt" for name in ("", "two-", "", "")
    ]
    assert [params.samples.source for params in sources] == [f"data/images/{name}a" for name in ("", "", "", "four-")]
    done = enginewright("new", "--name", "two", "--weights", "c/best.pt", cwd=repository)
    assert (done.returncode, done.stdout) == (1, "")
    assert "data/weights/two-best.pt exists already, and is not c/best.pt: rename one of them" in done.stderr


def test_models_share_one_dvc_repository_also_where_the_first_has_a_name(repository):
    assert place_of_one(repository, "wide") == (repository / "wide", repository, repository, repository)
    within = repository / "models"
    assert place_of_one(within, "wide") == (within / "wide", repository, within, within)


def test_a_makefile_of_the_owners_own_stays_and_so_does_what_comes_next(repository):
    (repository / "Makefile").write_text("test:\n\tpytest\n")
    assert new(repository).endswith("look at params.yaml, then python -m dvc repro\n")
    assert not (repository / ".enginewright/Makefile").exists()
    (repository / ".enginewright/version").write_text("0.1.0\n")
    done = enginewright("upgrade", cwd=repository)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Makefile stays as it is: .enginewright does not have it as it was laid out" in done.stdout
    assert not (repository / ".enginewright/Makefile").exists()


def test_make_says_what_to_do_where_python_has_no_enginewright(repository):
    new(repository)
    command = ["make", "--no-print-directory", "repro", "PYTHON=false"]  # make test makes this a make within another
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "false has no Enginewright: " in done.stderr
    assert "make PYTHON=" in done.stderr


def test_no_model_is_called_as_a_target_of_the_makefile():
    targets = re.findall(r"^(\w+):", (FILES / "Makefile").read_text(), re.MULTILINE)
    assert tuple(sorted(targets)) == TARGETS


def test_git_keeps_nothing_that_dvc_keeps_nor_the_environment(repository):
    new(repository)
    assert (repository / ".gitattributes").read_text() == (ROOT / ".gitattributes").read_text()
    for path in (".venv/bin/python", "nets/__pycache__/small.pyc"):
        assert subprocess.run(["git", "check-ignore", "-q", path], cwd=repository).returncode == 0, path
    for stage in planned_stages().values():
        for out in stage.get("do", stage).get("outs", []):
            path = (out if isinstance(out, str) else next(iter(out))).replace("${key}", "int8")
            ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=repository).returncode == 0
            assert ignored == (isinstance(out, str) or "cache" not in out[next(iter(out))]), path
