"""The recipes for the user's own images, on small files of the same layout."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image
from support import yolo
from support.checkout import NETWORK
from support.command import run_here
from support.paths import ROOT
from support.small_project import TINY, run_pipeline, run_stages, small_project
from support.texts import texts, write_tokenizer

from enginewright.core.params.all import Params, apply_recipe
from enginewright.data.sample_set import Manifest
from enginewright.measure.records import Reference, Validation
from enginewright.model.export import Export
from enginewright.tasks.choose import known_of
from recipes import regressor, scenes

STAGES = ("samples", "weights", "export", "reference")
WITHOUT_EXPORT = ("samples", "weights", "reference")
SYNSETS = [f"n{1440764 + 137 * place:08}" for place in range(1000)]


@pytest.fixture
def project(tmp_path, monkeypatch):
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lay_over(recipe, changes):
    apply_recipe(ROOT / "recipes" / f"{recipe}.yaml")
    Path("smaller.yaml").write_text(changes)
    apply_recipe(Path("smaller.yaml"))
    known_of(Params.read().task).write(Path("artifacts/task.json"))


def photos(folder, count):
    rng = np.random.default_rng(list(folder.encode()))
    Path(folder).mkdir(parents=True)
    for number in range(count):
        Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).save(f"{folder}/{number}.JPEG")


def weights_of(recipe):
    apply_recipe(ROOT / "recipes" / f"{recipe}.yaml")
    torch.manual_seed(0)
    Path("data/weights").mkdir(parents=True, exist_ok=True)
    return Params.read().weights.source


def results():
    manifest = Manifest.read(Path("artifacts/samples/validation/manifest.json"))
    return manifest, Reference.read(Path("artifacts/reference/reference.json"))


def test_cats_and_dogs_to_the_gate(tmp_path, monkeypatch):
    """Run all stages for the precision with the longest chain, with a smaller model and smaller images."""
    small_project(tmp_path, monkeypatch, "int8")
    monkeypatch.delitem(sys.modules, "small", raising=False)
    Path("small.py").write_text(NETWORK.replace("64, 10,", "64, 2,"))
    photos("data/images/cats-and-dogs/cat", 20)
    photos("data/images/cats-and-dogs/dog", 20)
    torch.save(importlib.import_module("small").network().state_dict(), weights_of("cats-and-dogs"))
    smaller = TINY.replace("training: 0", "training: 0, preprocessing: {resize: 36, crop: 32}")
    untrained = "precisions: {int8: {thresholds: {cosine: 0, relative_error: 10}}}\n"
    lay_over("cats-and-dogs", smaller + 'model: {source: "small:network"}\n' + untrained)
    record, validation = run_pipeline(monkeypatch, "int8")
    (manifest, reference), export = results(), Export.read(Path("artifacts/exported/export.json"))
    assert record.class_names == manifest.class_names == ("cat", "dog")
    assert {sample.label for sample in manifest.samples} == {0, 1}
    assert export.against_pytorch.relative_error < 1e-4
    assert (reference.samples, 0 <= reference.metrics["accuracy"] <= 1) == (24, True)
    assert 0 <= validation.main.engine <= 1
    assert (reference.by_chance, validation.broken) == (True, ())
    params = Path("params.yaml")
    params.write_text(params.read_text().replace("must_know: false", "must_know: true"))
    run_stages(monkeypatch, "validate", only="int8")
    (told,) = Validation.read(Path("reports/validation/int8.json")).broken
    assert told.startswith("PyTorch's own accuracy is no better than that of its answers to other images")


def test_imagenet_as_soon_as_the_files_are_there(project, monkeypatch):
    for synset in SYNSETS:
        photos(f"data/images/imagenet/{synset}", 1)
    torch.save(torchvision.models.squeezenet1_1(weights=None).state_dict(), weights_of("imagenet"))
    lay_over("imagenet", "samples: {validation: 8, calibration: 4}\nmodel: {source: squeezenet1_1}\n")
    run_stages(monkeypatch, *WITHOUT_EXPORT)
    manifest, reference = results()
    assert manifest.class_names == tuple(SYNSETS)
    assert all(SYNSETS[sample.label] == sample.name.split("/")[0] for sample in manifest.samples)
    assert manifest.preprocessing.shape == (3, 224, 224)
    assert reference.samples == 8


def of_scenes(monkeypatch, recipe, *arguments):
    """Make the scenes and the network, and find them."""
    monkeypatch.setattr(scenes, "FOR_PIPELINE", 12)
    monkeypatch.setattr("sys.argv", ["scenes.py", *arguments, "--scenes", "16", "--epochs", "1"])
    scenes.main()
    lay_over(recipe, "samples: {validation: 8, calibration: 4}\n")
    run_stages(monkeypatch, *WITHOUT_EXPORT)  # tests/tasks/test_pipeline.py exports both
    return results()


def test_the_segmenter_finds_the_scenes_and_the_network_that_are_made_for_it(project, monkeypatch):
    manifest, reference = of_scenes(monkeypatch, "segmenter")
    assert (manifest.task, len(manifest.class_names)) == ("segmentation", scenes.CLASSES)
    assert {sample.label for sample in manifest.samples} == {None}
    assert 0 < reference.metrics["mIoU"] < 1


def test_the_detector_finds_the_scenes_and_the_network_that_are_made_for_it(project, monkeypatch):
    manifest, reference = of_scenes(monkeypatch, "detector", "detector")
    assert (manifest.task, manifest.class_names) == ("detection", scenes.NAMES)
    assert reference.outputs == ("boxes", "scores")
    assert 0 <= reference.metrics["mAP"] <= reference.metrics["mAP50"] <= 1


def test_the_regressor_predicts_better_than_the_mean(project, monkeypatch):
    regressor.main()
    lay_over("regressor", "export: {opset: 20}\n")
    run_stages(monkeypatch, *STAGES)
    assert Reference.read(Path("artifacts/reference/reference.json")).metrics["R²"] > 0.3


def test_a_yolov8_file_to_the_answers_of_its_engine(tmp_path, monkeypatch, capsys):
    small_project(tmp_path, monkeypatch, "int8")
    known = yolo.write_images(Path("data/images/yolo"))
    yolo.write_detector(Path("data/models/yolo.onnx"), "yolov8")
    lay_over("yolo", TINY.replace("training: 0", "training: 0, preprocessing: {resize: 32, crop: 32}"))
    run_stages(
        monkeypatch, "machine", *STAGES, "simplify", "calibrate", "rescue", "search", "convert", "build", "validate"
    )
    validation = Validation.read(Path("reports/validation/int8.json"))
    assert (validation.metric, validation.main.reference, validation.main.engine) == ("mAP", 1, 1)
    last = Path("data/images/yolo/images/39.png")
    capsys.readouterr()
    assert run_here("infer", "artifacts/engines/int8", last, "--json") == 0
    boxes = json.loads(capsys.readouterr().out)["boxes"]
    assert sorted((box["class"], [round(value) for value in box["box"]]) for box in boxes) == known


def test_a_yolov5_file_with_a_score_that_it_is_an_object(project, monkeypatch):
    yolo.write_images(Path("data/images/yolo"))
    yolo.write_detector(Path("data/models/yolo.onnx"), "yolov5")
    lay_over("yolo", "samples: {validation: 24, calibration: 8, preprocessing: {resize: 32, crop: 32}}\n")
    run_stages(monkeypatch, *STAGES)
    assert Reference.read(Path("artifacts/reference/reference.json")).metrics["mAP"] == 1


def test_a_folder_of_sentence_transformers(project, monkeypatch):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    folder = Path("data/models/encoder")
    transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=50)).save_pretrained(folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text('{"pooling_mode": "mean", "include_prompt": true}')
    (folder / "modules.json").write_text('[{"type": "x.Transformer"}, {"type": "x.Pooling"}, {"type": "x.Normalize"}]')
    write_tokenizer(folder / "tokenizer.json")
    Path("data/texts").mkdir()
    shutil.copy(folder / "tokenizer.json", "data/texts/tokenizer.json")
    pairs = zip(texts(40), texts(40, seed=1), strict=True)
    rows = (f"{one},{other},{number / 40}" for number, (one, other) in enumerate(pairs))
    Path("data/texts/pairs.csv").write_text("\n".join(["text_a,text_b,score", *rows]))
    lay_over("sentence_transformers", "samples: {validation: 24, calibration: 8}\n")
    run_stages(monkeypatch, *STAGES)
    reference = Reference.read(Path("artifacts/reference/reference.json"))
    assert (reference.outputs, list(reference.metrics)) == (("sentence_embedding",), ["Spearman"])
