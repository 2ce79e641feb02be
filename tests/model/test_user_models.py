"""The examples of docs/how-to/models.md, from the samples to the gate."""

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torchvision
from PIL import Image
from support.documents import blocks
from support.small_project import (
    PER_PRECISION,
    PRECISION,
    STAGES,
    TINY,
    lay_over,
    planned_stages,
    run_pipeline,
    run_stages,
    small_project,
)

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.data.sample_set import Manifest, output_file
from enginewright.engine.engine import open_engine
from enginewright.measure.records import Reference
from enginewright.model.checkpoint import Weights

SMALL_IMAGES = "samples: {preprocessing: {resize: 20, crop: 16}}"
MAPS = """
import torch
from torch import nn


def picky():
    return nn.AvgPool2d(16)


class Few(nn.Module):
    def forward(self, images):
        return images.mean((2, 3)) + torch.zeros(8, 3)[: len(images)]


class Squeezed(nn.Module):
    def forward(self, images):
        return images.mean((2, 3), keepdim=True).squeeze()


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Conv2d(32, 16, 1),
    )
"""
FOUND = """
import torch
from torch import nn


class Found(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU())
        self.boxes, self.odds = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, image):
        seen = self.body(image).mean((2, 3))
        return {"boxes": self.boxes(seen), "odds": self.odds(seen).sigmoid()}


def network():
    torch.manual_seed(0)
    return Found()
"""
MAPS_RECIPE = """
model: {source: "maps:network"}
weights: {source: given}
samples: {source: data/images/plain, training: 0, preprocessing: {resize: 20, crop: 16}}
build: {profile: {height: {min: 15, opt: 16, max: 33}, width: {min: 16, opt: 16, max: 24}}}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Make a project of one precision. Random weights give scores too close to each other for its usual thresholds."""
    return small_project(tmp_path, monkeypatch, PRECISION)


def example(kind, words, document="models"):
    """Return the document's block that holds these words."""
    (text,) = (block.text for block in blocks(kind) if block.document.stem == document and words in block.text)
    return text


def write_code(monkeypatch, name, code):
    monkeypatch.delitem(sys.modules, name, raising=False)
    Path(f"{name}.py").write_text(code)


def photos(*folders):
    rng = np.random.default_rng(0)
    for folder in folders:
        Path(folder).mkdir(parents=True)
        for number in range(20):
            Image.fromarray(rng.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(f"{folder}/{number}.png")


def shapes(specs):
    return {spec.name: (spec.dtype, spec.shape) for spec in specs}


def test_every_stage_is_run(project):
    elsewhere = {"mix"}  # tests/precision/mixing/test_stage.py
    assert {*STAGES, *PER_PRECISION, "race", "report", "gate", *elsewhere} == planned_stages().keys()


def test_several_inputs_one_of_integers_and_several_outputs(project, monkeypatch, capsys):
    write_code(monkeypatch, "pairs", example("python", "# pairs.py"))
    exec(example("python", "data/images/pairs.npz"), {})
    lay_over(example("yaml", "pairs:network"), TINY)
    record, validation = run_pipeline(monkeypatch)
    assert shapes(record.interface.inputs) == {
        "pixels": ("float32", ("batch", 16)),
        "words": ("int64", ("batch", 5)),
    }
    assert shapes(record.interface.outputs) == {
        "scores": ("float32", ("batch", 4)),
        "features": ("float32", ("batch", 64)),
    }
    assert (validation.samples, validation.reference) == (24, "PyTorch")
    made = Path("artifacts/reference")
    scores = np.load(made / output_file(Reference.read(made / "reference.json").outputs.index("scores")))
    labels = [sample.label for sample in Manifest.read(Path("artifacts/samples/validation/manifest.json")).samples]
    assert validation.main.reference == np.mean(scores.argmax(1) == labels)  # not the first output's
    capsys.readouterr()
    exec(example("python", "open_engine", document="python"), {})
    assert sorted(capsys.readouterr().out.splitlines()) == ["features (4, 64)", "scores (4, 4)"]


def test_arrays_that_vary_along_an_axis_that_two_inputs_share(project, monkeypatch):
    write_code(monkeypatch, "texts", example("python", "# texts.py"))
    rng = np.random.default_rng(0)
    mask = (np.arange(24) < rng.integers(2, 24, (40, 1))).astype(np.float32)
    np.savez("data/images/texts.npz", ids=rng.integers(0, 100, (40, 24)), mask=mask)
    lay_over(example("yaml", "texts:network"), TINY)
    record, validation = run_pipeline(monkeypatch)
    assert shapes(record.interface.inputs) == {
        "ids": ("int64", ("batch", "length")),
        "mask": ("float32", ("batch", "length")),
    }
    assert [other.sizes for other in validation.resized] == [{"length": 4}, {"length": 48}]
    with open_engine(Path("artifacts/engines/int8"), None, Params.read().inference) as engine:
        fed = {"ids": np.zeros((2, 9), np.int64), "mask": np.ones((2, 8), np.float32)}
        with pytest.raises(EnginewrightError, match="input mask has length 8, and input ids has 9"):
            engine.run(fed)
        with pytest.raises(
            EnginewrightError, match=r"input ids has shape \(2, 49\), and the engine takes \(1 to 4, 4 to 48\)"
        ):
            engine.run({"ids": np.zeros((2, 49), np.int64), "mask": np.ones((2, 49), np.float32)})


def test_a_factory_with_a_checkpoint_and_a_fixed_batch(project, monkeypatch):
    photos("data/images/pets/cat", "data/images/pets/dog")
    write_code(monkeypatch, "pets", example("python", "# pets.py"))
    lay_over(example("yaml", "pets:network"), SMALL_IMAGES, TINY, example("yaml", "batches: [4]"))
    import pets

    torch.manual_seed(0)
    Path("data/weights").mkdir(exist_ok=True)
    torch.save(pets.network(width=32).state_dict(), "data/weights/pets.pt")
    record, validation = run_pipeline(monkeypatch)
    assert shapes(record.interface.inputs) == {"input": ("uint8", (4, 3, 16, 16))}
    assert shapes(record.interface.outputs) == {"logits": ("float32", (4, 2))}
    assert [spot.batch for spot in validation.spots] == [4]
    assert record.class_names == ("cat", "dog")


def test_images_without_labels_and_a_checkpoint_of_seven_classes(tmp_path, monkeypatch):
    """Only the weights tell the number of classes, and each stage that makes the model again must know it. The
    stages that int8 has beside those of fp32 do not make it."""
    small_project(tmp_path, monkeypatch, "fp32")
    photos("data/images/plain")
    torch.manual_seed(0)
    Path("data/weights").mkdir(exist_ok=True)
    torch.save(torchvision.models.squeezenet1_1(num_classes=7).state_dict(), "data/weights/seven.pt")
    recipe = """
model: {source: squeezenet1_1}
weights: {source: data/weights/seven.pt}
samples: {source: data/images/plain, preprocessing: {resize: 32, crop: 32}}
"""
    lay_over(recipe, TINY, "samples: {validation: 12}")
    record, validation = run_pipeline(monkeypatch, only="fp32")
    assert shapes(record.interface.outputs) == {"logits": ("float32", ("batch", 7))}
    assert Weights.read(Path("artifacts/weights/weights.json")).classes == 7
    assert (validation.main, validation.agreement.name) == (None, "top-1 agreement")


SIZED = """
samples: {values: {sizes: [16, 16]}}
build:
  profile:
    axes:
      rows: {min: 12, opt: 16, max: 20, values: {sizes: 0}}
      columns: {min: 12, opt: 16, max: 20, values: {sizes: 1}}
"""


def let_an_input_resize(path):
    """Give the graph a second input, whose values are the size that images are brought to."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.input[:] = ["resized" if name == "images" else name for name in node.input]
    options = {"axes": [2, 3], "mode": "nearest"}
    model.graph.node.insert(0, onnx.helper.make_node("Resize", ["images", "", "", "sizes"], ["resized"], **options))
    model.graph.input.append(onnx.helper.make_tensor_value_info("sizes", onnx.TensorProto.INT64, [2]))
    del model.graph.value_info[:]
    onnx.save(model, path)


def test_an_onnx_file_that_is_already_there_with_an_input_that_holds_sizes(project, monkeypatch):
    photos("data/images/pets/cat", "data/images/pets/dog")
    Path("data/models").mkdir(exist_ok=True)
    torch.manual_seed(0)
    code: dict[str, object] = {}
    exec(example("python", "# pets.py"), code)
    size = {0: torch.export.Dim("n", min=1, max=64)}
    torch.onnx.export(
        code["network"](width=32).eval(),
        (torch.zeros(2, 3, 16, 16),),
        "data/models/pets.onnx",
        dynamo=True,
        input_names=["images"],
        output_names=["scores"],
        dynamic_shapes=(size,),
        verbose=False,
    )
    let_an_input_resize("data/models/pets.onnx")
    lay_over(example("yaml", "data/models/pets.onnx"), SMALL_IMAGES, TINY, SIZED)
    record, validation = run_pipeline(monkeypatch)
    given = {"images": ("uint8", ("batch", 3, 16, 16)), "sizes": ("int64", (2,))}
    assert shapes(record.interface.inputs) == given
    ends = [{"rows": size, "columns": size} for size in (12, 20)]
    assert [other.sizes for other in validation.resized] == ends
    assert shapes(record.interface.outputs) == {"scores": ("float32", ("batch", 2))}
    assert validation.reference == "ONNX Runtime"


def test_the_reference_alone_says_why_no_accuracy_is_measured(project, monkeypatch, capsys):
    photos("data/images/pets/cat", "data/images/pets/dog", "data/images/pets/fish")
    write_code(monkeypatch, "found", FOUND)
    lay_over('{model: {source: "found:network"}, weights: {source: given}, samples: {source: data/images/pets}}')
    lay_over(SMALL_IMAGES, TINY)
    run_stages(monkeypatch, "machine", "samples", "weights", "reference")
    why = "samples.source has 3 classes, and no output of the model has as many"
    assert f"PyTorch: accuracy not measured, {why}" in capsys.readouterr().out


def test_a_model_without_scores_is_judged_by_its_errors(project, monkeypatch):
    """The model returns one number for two classes, as a sigmoid does, and boxes that look like scores."""
    photos("data/images/pets/cat", "data/images/pets/dog")
    write_code(monkeypatch, "found", FOUND)
    recipe = """
model: {source: "found:network", scores: none}
weights: {source: given}
samples: {source: data/images/pets}
"""
    lay_over(recipe, SMALL_IMAGES, TINY)
    record, validation = run_pipeline(monkeypatch)
    assert record.scores == "none"
    assert (validation.main, validation.agreement) == (None, None)
    assert "accuracy not measured (no labels or no scores)." in Path("reports/summary.md").read_text()


def test_maps_whose_size_follows_from_the_images(project, monkeypatch):
    photos("data/images/plain")
    write_code(monkeypatch, "maps", MAPS)
    lay_over(MAPS_RECIPE, TINY, "samples: {validation: 12}")
    record, validation = run_pipeline(monkeypatch)
    (logits,) = record.interface.outputs
    assert logits.shape[:2] == ("batch", 16)
    assert ["height" in logits.shape[2], "width" in logits.shape[3]] == [True, True]
    assert logits.shape[2:] != ("height", "width")
    assert [other.sizes for other in validation.resized] == [{"height": 15, "width": 16}, {"height": 33, "width": 24}]
    assert validation.main is None


def test_code_that_is_not_watched_gives_a_warning_in_the_stage_weights(project, monkeypatch, capsys):
    photos("data/images/plain")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "maps_vendored", raising=False)
    Path("third").mkdir()
    Path("third/maps_vendored.py").write_text(MAPS)
    write_code(monkeypatch, "maps", f"import sys\nsys.path.insert(0, {str(Path('third').resolve())!r})\n")
    with Path("maps.py").open("a") as code:
        code.write("from maps_vendored import network\n")
    lay_over(MAPS_RECIPE, TINY, "samples: {validation: 12}")
    run_stages(monkeypatch, "machine", "samples", "weights")
    assert f"MIND: maps:network imports {Path('third/maps_vendored.py').resolve()}, where" in capsys.readouterr().err


def test_a_size_that_the_model_refuses_is_reported_before_the_export(project, monkeypatch):
    photos("data/images/plain")
    write_code(monkeypatch, "maps", MAPS)
    lay_over(MAPS_RECIPE, TINY, "samples: {validation: 12}", 'model: {source: "maps:picky"}')
    with pytest.raises(SystemExit) as ended:
        run_stages(monkeypatch, "machine", "samples", "weights", "export")
    assert str(ended.value).startswith("export: model.source: the model fails on input (4, 3, 15, 16): RuntimeError: ")
    assert not Path("artifacts/exported").exists()


@pytest.mark.parametrize(
    ("largest", "model", "told"),
    [
        (9, "Few", "the model fails on input (9, 3, 16, 16): RuntimeError: "),
        (
            4,
            "Squeezed",
            "output logits is float32 of shape (3,); it must be floats with the batch, here 1, as first axis",
        ),
    ],
)
def test_the_smallest_and_the_largest_batch_are_tried_before_the_export(project, monkeypatch, largest, model, told):
    photos("data/images/plain")
    write_code(monkeypatch, "maps", MAPS)
    lay_over(MAPS_RECIPE, TINY, "samples: {validation: 12}", f'model: {{source: "maps:{model}"}}')
    lay_over(f"build: {{profile: {{batch: {{max: {largest}}}, height: null, width: null}}}}")
    with pytest.raises(SystemExit) as ended:
        run_stages(monkeypatch, "machine", "samples", "weights", "export")
    assert str(ended.value).startswith(f"export: model.source: {told}")
    assert ("return images.mean((2, 3)) + torch.zeros(8, 3)" in str(ended.value)) == (model == "Few")
    assert "It takes a single sample" not in str(ended.value)
