"""The recipes for images that the user brings, on small files of the same shape: the stages up to the ONNX graph."""

import runpy
import shlex
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from ruamel.yaml import YAML

from enginery.core.params import load_params
from enginery.core.records import Export, Manifest, Reference
from enginery.recipes import apply_recipe

ROOT = Path(__file__).parents[1]
STAGES = ("samples", "weights", "export", "reference")
SYNSETS = [f"n{1440764 + 137 * place:08}" for place in range(1000)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lay_over(recipe, changes):
    apply_recipe(ROOT / "recipes" / f"{recipe}.yaml")
    Path("smaller.yaml").write_text(changes)
    apply_recipe(Path("smaller.yaml"))


def photos(folder, count):
    rng = np.random.default_rng(list(folder.encode()))
    Path(folder).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(f"{folder}/{number}.JPEG")


def checkpoint(name, classes, path):
    torch.manual_seed(0)
    Path(path).parent.mkdir(parents=True)
    torch.save(torchvision.models.get_model(name, weights=None, num_classes=classes).state_dict(), path)


def run_stages(monkeypatch):
    """As dvc.yaml calls them, but in one process: importing PyTorch for each would take longer than the rest."""
    commands = YAML(typ="safe").load(Path("dvc.yaml"))["stages"]
    for stage in STAGES:
        program, option, module, *arguments = shlex.split(commands[stage]["cmd"])
        assert (program, option) == ("python", "-m")
        monkeypatch.setattr("sys.argv", [module, *arguments])
        monkeypatch.delitem(sys.modules, module, raising=False)  # other tests import it, which runpy warns of
        runpy.run_module(module, run_name="__main__")


def results():
    artifacts = Path("artifacts")
    return (
        Manifest.read(artifacts / "samples/validation/manifest.json"),
        Export.read(artifacts / "exported/export.json"),
        Reference.read(artifacts / "reference/reference.json"),
    )


def test_cats_and_dogs_as_soon_as_the_files_are_there(project, monkeypatch):
    photos("data/images/cats-and-dogs/cat", 6)
    photos("data/images/cats-and-dogs/dog", 6)
    checkpoint("resnet18", 2, load_recipe("cats-and-dogs").weights.source)
    lay_over("cats-and-dogs", "samples: {validation: 8, calibration: 4}\n")
    run_stages(monkeypatch)
    manifest, export, reference = results()
    assert manifest.class_names == ("cat", "dog")
    assert {sample.label for sample in manifest.samples} == {0, 1}
    assert export.against_pytorch.relative_error < 1e-4
    assert (reference.samples, 0 <= reference.accuracy <= 1) == (8, True)


def test_imagenet_as_soon_as_the_files_are_there(project, monkeypatch):
    """With a checkpoint of one's own, since nothing is downloaded here."""
    for synset in SYNSETS:
        photos(f"data/images/imagenet/{synset}", 1)
    checkpoint("resnet50", 1000, "data/weights/own.pt")
    lay_over("imagenet", "samples: {validation: 8, calibration: 4}\nweights: {source: data/weights/own.pt}\n")
    run_stages(monkeypatch)
    manifest, export, _ = results()
    assert manifest.class_names == tuple(SYNSETS)
    assert all(SYNSETS[sample.label] == sample.name.split("/")[0] for sample in manifest.samples)
    assert manifest.preprocessing.shape == (3, 224, 224)
    assert export.against_pytorch.relative_error < 1e-4


def load_recipe(name):
    apply_recipe(ROOT / "recipes" / f"{name}.yaml")
    return load_params()
