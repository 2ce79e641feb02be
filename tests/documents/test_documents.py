"""README and docs: their commands run, or are checked by a rule where they take a GPU, a network or minutes."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
import tomllib
from dvc.cli.parser import get_main_parser
from dvc.utils.hydra import apply_overrides, get_hydra_sweeps
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from ray.scripts.scripts import cli as ray_commands
from ruamel.yaml import YAML
from sklearn.datasets import load_digits
from support.checkout import checkout
from support.documents import DOCUMENTS, ROOT, anchors, blocks, commands, lines_of, links, prose
from support.params import VALID
from support.project import make_project
from support.shell import run

from enginewright.cli.layout import FILES as OF_PROJECTS
from enginewright.cli.layout import planned_stages
from enginewright.cli.main import build_parser
from enginewright.core.params.all import Params, all_defaults, apply_recipe, flat
from enginewright.data.preprocessing import prepare
from enginewright.data.sample_set import Manifest
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import target_of

PARAMS = VALID
STAGES = planned_stages()
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MADE = ("artifacts/", "bundles/", "reports/", "data/", "digits", "params.yaml")  # by the pipeline, or by the reader
TO_RUN = ("sh", "console", "python")
RUN_A_SCRIPT = (("source",), ("Out-String",), ("Invoke-Expression",))  # that comes through a pipe, in other shells
GIT = {"checkout", "pull", "push", "add", "commit", "apply", "clone", "remote", "init"}


# What is checked of every command, without running it.


def check_make(words):
    targets = re.findall(r"(?m)^([a-z-]+):.*##", (ROOT / "Makefile").read_text())
    targets += re.findall(r"(?m)^([a-z]+):$", (OF_PROJECTS / "Makefile").read_text())  # of a project
    targets += re.findall(r"(?m)^READY := (\S+)$", (ROOT / "Makefile").read_text())
    for word in words:
        name, is_setting, value = word.partition("=")
        assert name in ({"RECIPE", "PYTHON"} if is_setting else set(targets)), word
        assert not is_setting or is_placeholder(value) or name == "PYTHON" or (ROOT / value).exists(), word


def check_dvc(words, tmp_path):
    get_main_parser().parse_args(words)  # exits if it doesn't understand
    if words[0] == "repro":
        assert {word for word in words[1:] if not word.startswith("-")} <= set(STAGES)
    overrides = [value for option, value in pairwise(words) if option in ("-S", "--set-param")]
    for name in (override.partition("=")[0].lstrip("+") for override in overrides):
        require_parameter(name)
    sets = get_hydra_sweeps({"": overrides}) if "--queue" in words else [{"": overrides}]
    for chosen in (each[""] for each in sets if overrides):
        known = shutil.copy(ROOT / "params.yaml", tmp_path)
        apply_overrides(str(known), list(chosen))
        Params.read(Path(known))


def require_parameter(name):
    section = PARAMS
    for part in name.split("."):
        assert part in section, f"params.yaml has no {name}"
        section = section[part]


def check_mention(program, words):
    parser = get_main_parser() if program == "dvc" else build_parser()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([*words, "--help"])
    assert ended.value.code == 0, words


def check_python(words):
    if words[:1] == ["-m"]:
        assert importlib.util.find_spec(words[1]), words[1]
    else:
        assert words[0] == "infer.py" or (ROOT / words[0]).is_file(), words[0]


def check_pip(words):
    assert words[0] == "install", words
    wanted = " ".join(word for word in words[1:] if word != "-U")
    (extra,) = re.findall(r"(?:-e \.|^enginewright)\[([\w-]+)\]", wanted) or [None]
    assert extra in EXTRAS or wanted in ("onnxruntime-gpu", "pre-commit", "dvc-s3"), wanted


def check_path(words):
    (path, *_) = (word for word in words if not word.startswith("-"))
    assert path.startswith(MADE) or (ROOT / path).exists() or path == ".venv/bin/activate", path


def check_docker(words):
    if words[0] == "build":
        assert (ROOT / words[words.index("--file") + 1]).is_file(), words
    elif "make" in words:
        check_make(words[words.index("make") + 1 :])


def is_placeholder(text):
    return bool(re.search(r"\b[A-Z]{2,}\b", text))


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.place)
def test_every_command_is_one_that_exists(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program, *words = command.words
    if command.is_mention and program in ("dvc", "enginewright"):
        check_mention(program, words)
    elif command.is_mention and program == "pip":
        assert words == ["install"]
    elif program == "make":
        check_make(words)
    elif program == "dvc":
        check_dvc(words, tmp_path)
    elif program == "enginewright" and "--print-completion" in words:
        with pytest.raises(SystemExit, match=r"^0$"):
            build_parser().parse_args(words)
    elif command.words in RUN_A_SCRIPT:
        pass
    elif program == "enginewright":
        build_parser().parse_args(words)
    elif program == "python":
        check_python(words)
    elif program == "pip":
        check_pip(words)
    elif program in ("bash", "source"):
        check_path(words)
    elif program == "docker":
        check_docker(words)
    elif program == "git":
        assert words[0] in GIT, words
    elif program == "ray":
        ray_commands.commands[words[0]].make_context("ray", words[1:])  # exits if it doesn't understand
    else:
        assert program in ("cd", "echo", "sed", "jq", "pytest", "trtexec"), f"say in this test how to check {program}"


def test_commands_are_found():
    found = {command.words[0] for command in commands()}
    assert {"make", "dvc", "enginewright", "python", "pip", "bash", "git"} <= found
    assert len(commands()) > 60


def test_no_command_hides_in_a_block_of_another_kind():
    for block in blocks(""):
        for line in block.text.splitlines():
            assert not re.match(r"\$ |(make|dvc|enginewright|pip|git|source) ", line), f"{block.name}: {line}"


@pytest.mark.parametrize(
    "block",
    [block for block in blocks("yaml") if set(YAML(typ="safe").load(block.text)) <= set(PARAMS)],
    ids=lambda b: b.name,
)
def test_parameters_in_the_documents_are_valid(block, tmp_path):
    """Each is a params.yaml as it stands, and a recipe that may be laid over this project's."""
    (tmp_path / "recipe.yaml").write_text(block.text)
    Params.read(tmp_path / "recipe.yaml")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    apply_recipe(tmp_path / "recipe.yaml", tmp_path / "params.yaml")


FILES = (".cache", ".pt", ".onnx", ".json", ".jsonl", ".csv", ".npz", ".py", ".md", ".yaml")


def parameters():
    for document in DOCUMENTS:
        if document.name == "parameters.md":  # which is made from the code
            continue
        for name in re.findall(rf"`((?:{'|'.join(PARAMS)})(?:\.\w+)+)", prose(document)):
            if not name.endswith(FILES):
                yield document.name, name.replace(".P.", ".int8.")


@pytest.mark.parametrize(("document", "name"), sorted(set(parameters())))
def test_parameters_in_the_text_exist(document, name):
    require_parameter(name)


# What is run: each block that is not marked otherwise, in a project with one tiny engine and two commits.


@pytest.fixture(scope="module")
def engine(tiny_onnx, machine, build, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines") / "int8"
    build_engine(DescribedGraph("int8", tiny_onnx, manifest), target_of(machine, build.tensorrt), build, folder)
    return folder


@pytest.fixture
def project(engine, tiny_onnx, machine, tmp_path):
    root = checkout(tmp_path / "project")
    for name in ("recipes", "docs", "tests", "Makefile", "pyproject.toml", "requirements.lock", "README.md"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, root / name)
    make_project(root, engine, tiny_onnx, machine)
    shutil.copy(ROOT / "reports/metrics.json", root / "reports")
    (root / "digits").mkdir()
    for number in range(3):
        Image.fromarray(np.full((8, 8), 80 * number, np.uint8)).save(root / f"digits/{number}.png")
    run(
        root, "git init -q && git add . && git commit -qm one && sed -i 's/seed: 0 .*of the split/seed: 1/' params.yaml"
    )
    run(root, "git add . && git commit -qm two")
    return root


def script_of(block):
    """A command may fail only where the next one shows its exit status."""
    lines = lines_of(block)
    allowed = [after.strip() == "echo $?" for after in [*lines[1:], ""]]
    return "\n".join(
        f"({line}) || [ $? -lt 6 ]" if may_fail else line for line, may_fail in zip(lines, allowed, strict=True)
    )


def runnable():
    found = {}
    for block in blocks(*TO_RUN):
        if not block.not_run and not block.at_length:
            found.setdefault(block.document, []).append(block)
    return found


@pytest.mark.parametrize("document", runnable(), ids=lambda path: path.stem)
def test_what_is_not_marked_otherwise_runs(document, project):
    for block in runnable()[document]:
        (project / "digits/broken.png").unlink(missing_ok=True)
        if "broken.png" in block.text:
            (project / "digits/broken.png").write_text("no image")
        if block.kind == "python":
            (project / "block.py").write_text(block.text)
            run(project, "python block.py")
        else:
            run(project, script_of(block))


@pytest.fixture(scope="module")
def digits(machine, build, preprocessing, tmp_path_factory):
    """Three digits as images, and an engine that tells them apart: an image is nearer to itself than to another."""
    folder = tmp_path_factory.mktemp("digits")
    images = folder / "digits"
    images.mkdir()
    for number, image in enumerate(load_digits().images[:3]):
        Image.fromarray((image * 15).astype("uint8")).save(images / f"{number}.png")
    (images / "broken.png").write_text("no image")
    seen = np.stack([prepare(images / f"{number}.png", preprocessing).ravel() for number in range(3)])
    weights = np.zeros((10, seen.shape[1]), np.float32)
    weights[:3] = seen / np.linalg.norm(seen, axis=1, keepdims=True)
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["input"], ["pixels"]),
            helper.make_node("Gemm", ["pixels", "weights"], ["logits"], "nearest", transB=1),
        ],
        "digits",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(weights, "weights")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), folder / "onnx")
    manifest = Manifest(
        task="classification",
        source="digits",
        inputs=("input",),
        preprocessing=preprocessing,
        class_names=tuple("0123456789"),
        samples=(),
    )
    engine = folder / "artifacts/engines/int8"
    build_engine(DescribedGraph("int8", folder / "onnx", manifest), target_of(machine, build.tensorrt), build, engine)
    return folder


def as_any_training_has_it(shown):
    """How sure an engine is, and what it sees behind the likeliest class, is another training's choice."""
    shown = re.sub(r'(?<="probability": )[-\d.e]+', "P", re.sub(r"[\d.]+(?=%)", "P", shown))
    return re.sub(r'(?<=P%   )\d|(?<=P}, {"class": )"\d", "index": \d', "another", shown)


def lines_in_any_order(shown):
    """Errors may come before what is printed or after it."""
    return sorted(as_any_training_has_it(shown).splitlines())


def test_infer_prints_what_the_document_shows(digits):
    (block,) = (block for block in blocks("console") if "enginewright infer" in block.text)
    table, status, as_json = lines_of(block)
    printed = run(digits, f"({table} || {status}; {as_json}) 2>&1")
    shown = "\n".join(line for line in block.text.splitlines() if not line.startswith("$ "))
    assert lines_in_any_order(shown) == lines_in_any_order(printed)


@pytest.mark.parametrize(
    "made",
    ["digits/0.png", "bundles/resnet18-int8/README.md", "reduced/int8/fails.py", "artifacts/engines/int8/engine.json"],
)
def test_git_leaves_alone_what_the_reader_makes(made):
    assert subprocess.run(["git", "check-ignore", "--quiet", made], cwd=ROOT).returncode == 0


def test_each_exception_names_its_reason_and_what_stands_in():
    reasons = [(block.name, block.not_run) for block in blocks(*TO_RUN) if block.not_run]
    assert len(reasons) < len([block for block in blocks(*TO_RUN) if not block.not_run])
    for name, reason in reasons:
        for test in re.findall(r"\w+\.py", reason):
            assert list((ROOT / "tests").rglob(test)), f"{name}: {reason}"


# Links, and what is made from something else.


@cache
def anchors_of(document):
    return anchors(document)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for link in links(document):
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        assert target.exists(), f"{document.name}: {link}"
        assert not anchor or anchor in anchors_of(target), f"{document.name}: {link}"


def test_pictures_are_small_files_that_a_page_shows():
    pictures = set((ROOT / "docs/pictures").iterdir())
    assert max(picture.stat().st_size for picture in pictures) < 150_000
    shown = {(document.parent / link).resolve() for document in DOCUMENTS for link in links(document)}
    assert pictures <= shown


def test_every_document_is_reached_from_the_readme():
    reached, ahead = set(), [ROOT / "README.md"]
    while ahead:
        document = ahead.pop()
        if document not in reached:
            reached.add(document)
            found = [(document.parent / link.partition("#")[0]).resolve() for link in links(document)]
            ahead += [target for target in found if target.suffix == ".md"]
    assert set(DOCUMENTS) <= reached


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().split()) <= 500


def test_all_documents_are_short():
    """Those that are not made from something else; what is new makes room for itself."""
    made = [ROOT / "docs/reference/parameters.md"]
    assert sum(len(path.read_text().split()) for path in DOCUMENTS if path not in made) <= 35_000


def test_every_benchmark_is_listed():
    listed = re.findall(r"\]\((\w+/\w+\.py)\)", (ROOT / "benchmarks/README.md").read_text())
    made = {path.relative_to(ROOT / "benchmarks").as_posix() for path in ROOT.glob("benchmarks/**/*.py")}
    assert sorted(listed) == sorted(made)


def test_every_benchmark_is_quoted():
    quoted = "".join(path.read_text() for path in DOCUMENTS if path.parent.name != "benchmarks")
    # by others, or made for them
    imported = {"zoo_models", "small_networks", "small_transformers", "cluster_work", "gpu_training"}
    names = {path.stem: path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*/*.py")}
    assert [place for stem, place in names.items() if stem not in imported and place not in quoted] == []


def test_the_graph_is_drawn_as_it_is(monkeypatch):
    spec = importlib.util.spec_from_file_location("graph", ROOT / "docs/graph.py")
    graph = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(graph)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    text = graph.DOCUMENT.read_text()
    assert graph.with_drawing(text) == text, "run `make graph`"


def test_help_lists_every_target():
    makefile = (ROOT / "Makefile").read_text()
    (phony,) = re.findall(r"(?m)^\.PHONY: (.+)$", makefile)
    assert set(phony.split()) == set(re.findall(r"(?m)^([a-z-]+):.*## \S", makefile))


def test_the_document_of_all_parameters_is_that_of_the_code():
    spec = importlib.util.spec_from_file_location("parameters", ROOT / "docs/parameters.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known = (ROOT / "docs/reference/parameters.md").read_text()
    assert known == module.document(), "run `python docs/parameters.py`"
    names = set(re.findall(r"^\| `([^`]+)`", known, re.MULTILINE))
    by_precision = ("precisions.", "search.", "mix.")
    assert {place for place, _ in flat(all_defaults()) if not place.startswith(by_precision)} <= names
