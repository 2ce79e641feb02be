"""README and docs: what takes minutes, block after block in a project with a small setting: `make verify-documents`.

What the other tests run of them is in test_documents.py. The recipes that need no files and the benchmarks are run here
as well.
"""

import html
import re
import shutil
import sys

import pytest
from ruamel.yaml import YAML
from support.checkout import TINY, Project, checkout
from support.documents import ROOT, blocks, in_text, lines_of
from support.project import let_make_run
from support.shell import attempt, run
from support.small_project import lay_over as lay_over_params
from support.small_project import run_pipeline, small_project

ELSEWHERE = {  # where it is run
    "make check": ".ci/run",
    "make test": ".ci/run",
    "make nightly": "tests/nightly/test_command.py",
}
OF_OTHER_SHELLS = re.compile("--print-completion (fish|tcsh|powershell)")  # test_cli.py has fish's
WHOLE = {"dvc status", "dvc dag", "dvc checkout", "enginewright --version"}  # though no more than a name
TOLD = {"enginewright": (3, 4)}  # that something changed, or cannot be told, is an answer
AGREES = "computes what this graph means"  # so says `enginewright reduce` of an engine that is right
OF_OTHER_TESTS = (
    "enginewright new", "enginewright upgrade",  # leave folders that later runs take for models: test_new.py
    "enginewright doctor --target",  # asks a machine over ssh: test_ssh.py
)  # fmt: skip
FIRST = {  # what the page has told to do before
    "dvc add bundles": "enginewright bundle int8",
    "dvc push data/*/*.dvc": "dvc remote add --default store ../store; touch data/texts/1; dvc add data/texts/1",
    "enginewright compare --from ../old/bin/python --to ../new/bin/python":
        f"ln -s {sys.prefix} ../old; ln -s {sys.prefix} ../new",
}  # fmt: skip
STANDS_FOR = re.compile(r"\b(?!HEAD\b)[A-Z]{3,}\b|\b(A B|P)\b|@P")
SMALL_RECIPE = {
    "samples": TINY["samples"] | {"preprocessing": {"resize": 64, "crop": 64}},
    "weights": {"training": {"size": 64}},
    "precisions": {"int8": {"must_pay": None}},
    "benchmark": TINY["benchmark"],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Reproduced once and committed; the commit before has the same."""
    project = Project(checkout(tmp_path_factory.mktemp("project")))
    shutil.copytree(ROOT / "recipes", project.root / "recipes")
    let_make_run(project.root)
    project.make_small()
    make_smaller(project.root / "recipes/resnet50.yaml")
    run(project.root, "git init -q && dvc repro && git add . && git commit -qm one && git commit -qm two --allow-empty")
    return project.root


def make_smaller(recipe):
    yaml = YAML()
    settings = yaml.load(recipe)
    lay_over(settings, SMALL_RECIPE)
    with recipe.open("w") as file:
        yaml.dump(settings, file)


def lay_over(settings, changes):
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict):
            lay_over(settings[name], value)
        else:
            settings[name] = value


def written_out():
    """Commands in running text that are whole, and need neither a network nor what they only stand for."""
    texts = {text for _, text in in_text() if text.split()[0] in ("dvc", "enginewright")}
    texts = {text for text in texts if not OF_OTHER_SHELLS.search(text) and not text.startswith(OF_OTHER_TESTS)}
    named = {text for text in texts if len(text.split()) == 2 and text not in WHOLE}
    return sorted(text for text in texts - named if not STANDS_FOR.search(text))


def test_the_page_finds_the_commit_that_holds_it(project):
    page = html.unescape((project / "reports/report.html").read_text())
    (command,) = re.findall(r"(?m)^git log .*$", page)
    assert run(project, command).split()[1:] == ["one"]


def test_commands_are_written_out():
    assert len(written_out()) > 10
    assert FIRST.keys() <= set(written_out())


@pytest.mark.parametrize("text", written_out())
def test_what_is_written_in_the_text_runs(text, project):
    """Before the blocks, which go from model to model."""
    run(project, FIRST.get(text, ""))
    done = attempt(project, text)
    fine = done.returncode in (0, *TOLD.get(text.partition(" ")[0], ())) or AGREES in done.stderr
    assert fine, f"{text}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize(
    "block", [block for block in blocks("sh", "console") if block.at_length], ids=lambda block: block.name
)
def test_what_takes_minutes_runs(block, project):
    root = ROOT if block.document.name == "CONTRIBUTING.md" else project
    for line in lines_of(block):
        command = line.partition("#")[0].strip()
        if command in ELSEWHERE:
            assert command in (ROOT / ELSEWHERE[command]).read_text()
            continue
        done = attempt(root, line)
        # Four steps of training leave an int8 that need not keep to a limit: then that is what it must say.
        assert done.returncode == 0 or "gate: int8: " in done.stderr, f"{line}\n{done.stdout}{done.stderr}"


# A network, and arguments of it where it takes one size of images alone.
WITHOUT_FILES = {
    "convnext_tiny": "{}",
    "efficientnet_b0": "{}",
    "mobilenet_v3": "{}",
    "swin_t": "{}",
    "vit_b_16": "{image_size: 64}",
}
SMALLEST = """
samples: {validation: 24, calibration: 8, training: 64, preprocessing: {resize: 64, crop: 64}}
weights: {training: {size: 64, epochs: 0}}
build: {profile: {batch: {min: 1, opt: 2, max: 4}}}
validation: {spot_samples: 4}
benchmark: {batches: [1], requests: [1], seconds: 0.05}
"""


def test_every_recipe_without_files_is_run():
    brought = {"cats-and-dogs", "imagenet", "segmenter", "detector", "regressor", "yolo", "sentence_transformers"}
    brought |= {"sentence_encoder"}  # all but the last by test_recipes.py; this one by hand, in 20 minutes
    at_length = {"resnet50"}  # above, with all precisions
    assert {path.stem for path in ROOT.glob("recipes/*.yaml")} == {*WITHOUT_FILES, *brought, *at_length}


@pytest.mark.parametrize("name", WITHOUT_FILES)
def test_a_recipe_without_files_comes_through_all_stages(name, tmp_path, monkeypatch):
    small_project(tmp_path, monkeypatch, "fp32")
    recipe = (ROOT / f"recipes/{name}.yaml").read_text()
    lay_over_params(recipe, SMALLEST + f"model: {{arguments: {WITHOUT_FILES[name]}}}\n")
    record, validation = run_pipeline(monkeypatch, "fp32")
    assert record.class_names == tuple("0123456789")
    assert validation.main is not None


CONVERTED = "artifacts/converted"
# Benchmarks, with arguments that make them short, and what only a finished run prints.
BENCHMARKS = {
    "scale/growth.py": ("--sizes 4 8 12 --repetitions 1 --picture scale.png", "validate: "),
    "scale/calibration.py": ("--model resnet18 --size 64 --samples 8 --large 16", "2 times the samples"),
    "scale/samples.py": ("--sizes 20 40", "| 40 | "),
    "scale/cluster.py": ("--images 256 --workers 1 --seconds 1", "| validate  | processes | "),
    "measuring/benchmark_app.py": ("--batches 1 --seconds 1 --repetitions 1", "| 1 | "),
    "measuring/async_queue.py": ("--requests 2", "| 2 | "),
    "measuring/contention.py": ("", "| a busy program"),
    "measuring/alarm.py": ("1", "of all races: "),
    "measuring/alarm_ratios.py": ("2", "of all comparisons"),
    "measuring/intervals.py": ("--sets 5", "| RMSE | 512 | "),
    "measuring/rebuilds.py": ("--times 2", "fp32: 2 builds, 1 different answers"),
    "networks/zoo.py": ("squeezenet1_1 --epochs 0", '"ratios": {"fp32": '),
    "networks/peers.py": ("squeezenet1_1 --epochs 0 --rows rows.jsonl", "| squeezenet1_1 | "),
    "networks/floats.py": ("squeezenet1_1 --precisions fp32 --rows floats.jsonl", '"ratios": {"fp32": {"1": '),
    "gpu/graphs.py race": (f"openvino {CONVERTED}/fp32/model.onnx {CONVERTED}/int8/model.onnx", '"times": {'),
    "gpu/graphs.py shapes": (f"openvino {CONVERTED}/int8/model.onnx", '"another before": '),
}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_comes_to_its_end(name, project):
    """Its targets are for longer runs on a quiet machine."""
    arguments, told = BENCHMARKS[name]
    done = attempt(project, f"python {ROOT}/benchmarks/{name} {arguments}")
    assert told in done.stdout, done.stdout + done.stderr
