"""Code that comes as data runs nowhere. Pickled objects are tried in test_checkpoint.py and test_arrays.py, and names
that reach HTML in tests/report/page/test_page.py."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from PIL import Image
from support.paths import ROOT
from torture.kinds import graph

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params, apply_recipe
from enginewright.core.params.build import Profile, Range
from enginewright.data.sources.detections import open_yolo_folder
from enginewright.data.sources.files import open_folder
from enginewright.data.splits import write_split
from enginewright.graph.read_interface import interface_of
from enginewright.model.source_model import GIVEN_GRAPH, open_source_model

TAGS = (
    "!!python/object/apply:os.system ['touch pwned']",
    "!!python/object/new:subprocess.Popen [['touch', 'pwned']]",
    "!!python/name:os.system",
    "!<tag:yaml.org,2002:python/object/apply:os.system> ['touch pwned']",
)
NAMES = (
    "$(touch pwned)",
    "; touch pwned",
    "`touch pwned`",
    "| touch pwned",
    "<script>",
    "--help",
    "'\"",
    "%s{0}",
    "\u202e",
)
PARAMS = (ROOT / "params.yaml").read_text()


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert not list(tmp_path.rglob("pwned*"))


def _params(tag):
    Path("params.yaml").write_text(PARAMS.replace("runtime: auto", f"runtime: {tag}"))
    Params.read()


def _recipe(tag):
    Path("params.yaml").write_text(PARAMS)
    Path("recipe.yaml").write_text(f"runtime: {tag}\n")
    apply_recipe(Path("recipe.yaml"))


def _classes(tag):
    folder = Path("data/images/yolo")
    for name in ("images", "labels"):
        (folder / name).mkdir(parents=True)
    Image.new("L", (9, 9)).save(folder / "images/0.png")
    (folder / "labels/0.txt").write_text("0 0.5 0.5 0.1 0.1")
    (folder / "data.yaml").write_text(f"names: {tag}\n")
    open_yolo_folder(folder, Path("data/images"), None)


@pytest.mark.parametrize("read", [_params, _recipe, _classes])
@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_of_yaml_makes_no_object(read, tag):
    with pytest.raises(EnginewrightError):
        read(tag)


@pytest.mark.parametrize(("kind", "domain"), [("Evil", "com.evil"), ("PythonOp", "ai.onnx.contrib"), ("Evil", "")])
def test_an_operator_that_no_runtime_has_is_refused(kind, domain):
    model = graph()
    model.graph.node[1].op_type, model.graph.node[1].domain = kind, domain
    model.opset_import.append(helper.make_opsetid(domain or "x", 1))
    onnx.save(model, GIVEN_GRAPH)
    with pytest.raises(EnginewrightError, match="ONNX Runtime cannot open the file"):
        open_source_model(Path())


@pytest.mark.parametrize(
    "name", ['"); import os #', "$(touch pwned)", "`touch pwned`", "a\nb", "'", "\\", "\x1b[2J", "\u202e"]
)
@pytest.mark.parametrize("place", ["input", "output"])
def test_a_tensor_whose_name_could_run_in_a_script_is_refused(name, place):
    model = graph()
    node = model.graph.node[0 if place == "input" else -1]
    getattr(node, place)[0] = getattr(model.graph, place)[0].name = name
    with pytest.raises(EnginewrightError, match="could run as code in the scripts of a bundle"):
        interface_of(model, Profile(batch=Range(min=1, opt=2, max=4)), "the model")


@pytest.mark.parametrize("name", ["serving_default_input:0", "/model/Conv_output_0", "input.1", "images [N]", "é"])
def test_usual_names_are_taken(name):
    model = graph()
    model.graph.node[0].input[0] = model.graph.input[0].name = name
    profile = Profile(batch=Range(min=1, opt=2, max=4))
    assert interface_of(model, profile, "the model").inputs[0].name == name


def test_names_of_files_and_classes_are_only_names(samples_params):
    for name in NAMES:
        folder = Path("data/images/set") / name
        folder.mkdir(parents=True)
        Image.fromarray(np.full((9, 9), 50, np.uint8)).save(folder / f"{name}.png")
    source = open_folder(Path("data/images/set"), Path("data/images"), None)
    manifest = write_split(source, range(len(source)), samples_params("data/images/set"), Path("samples"))
    assert manifest.class_names == tuple(sorted(NAMES))
    assert {sample.name for sample in manifest.samples} == {f"{name}/{name}.png" for name in NAMES}
