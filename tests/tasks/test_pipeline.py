"""Each task that is not classification, from the user's files to the gate or to the validation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support.command import run_here
from support.small_project import PER_PRECISION, STAGES, TINY, lay_over, run_pipeline, run_stages, small_project

from enginewright.bundle.facts import require_passed
from enginewright.bundle.write import write_bundle
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.record import EngineRecord
from enginewright.measure.records import Validation

TO_VALIDATION = (*STAGES, *PER_PRECISION[: PER_PRECISION.index("validate") + 1])
NETWORKS = """
import torch
from torch import nn


def regressor():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))


def segmenter():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1))


class Detector(nn.Module):  # finds cells of 8 by 8 pixels that are red or green
    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 6, 8, stride=8)
        with torch.no_grad():
            self.head.weight.zero_()
            self.head.bias[:] = torch.tensor([-10.0, -10, 0, 0, 0, 0])
            for channel in range(2):
                self.head.weight[channel, channel] = 20 / 64
            self.head.weight[2:] = 0.001
        begin = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="xy"), dim=-1).reshape(16, 2) * 8
        self.register_buffer("cells", torch.cat([begin, begin + 8], dim=1).float())

    def forward(self, images):
        found = self.head(images).flatten(2).transpose(1, 2)
        return {"boxes": self.cells + found[..., 2:], "scores": found[..., :2].sigmoid()}


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(50, 16), nn.Linear(16, 8)

    def forward(self, ids, mask):
        weights = mask.unsqueeze(-1).float()
        return {"vector": self.last((self.words(ids) * weights).sum(1) / weights.sum(1))}
"""
OWN_TASK = """
import numpy as np
from enginewright.tasks.task import Metric, Shown, Task, mean


class Signs(Task):
    metrics = (Metric("right signs", mean, is_share=True),)
    lacking = "no truth"

    def __init__(self, output, class_names): ...

    def reads(self, shapes):
        return next(iter(shapes))

    def measure(self, outputs, truth, places):
        return [np.all((outputs["logits"] > 0) == truth[places], axis=1).astype(float)]

    def show(self, outputs, top):
        for row in outputs["logits"]:
            yield Shown("".join("+-"[int(value < 0)] for value in row), {})
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = small_project(tmp_path, monkeypatch, "int8")
    for name, code in {"networks": NETWORKS, "signs": OWN_TASK}.items():
        Path(f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    Path("data/images").mkdir(parents=True, exist_ok=True)
    return root


def validated(monkeypatch):
    run_stages(monkeypatch, *TO_VALIDATION)
    return Validation.read(Path("reports/validation/int8.json"))


def test_a_regressor_of_arrays(project, monkeypatch, capsys):
    import networks
    import torch

    inputs = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    exact = networks.regressor()(torch.from_numpy(inputs)).detach().numpy()
    np.savez("data/images/rows.npz", input=inputs, targets=exact + 0.01)
    recipe = """
task: regression
model: {source: "networks:regressor"}
weights: {source: given}
samples: {source: data/images/rows.npz, preprocessing: null}
"""
    lay_over(recipe, TINY)
    found = validated(monkeypatch)
    r2, rmse = found.results
    assert (found.task, found.metric, found.agreement, r2.name, rmse.name) == ("regression", "R²", None, "R²", "RMSE")
    assert rmse.reference == pytest.approx(0.01, rel=1e-3)
    assert rmse.drop > 0
    assert rmse.interval.low < rmse.drop < rmse.interval.high
    capsys.readouterr()
    engine = Path("artifacts/engines/int8")
    assert run_here("infer", engine, "data/images/rows.npz", "--json") == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["row"] for each in told] == list(range(40))
    assert np.allclose([each["values"] for each in told], exact, atol=0.2 * np.abs(exact).max())
    np.savez("wrong.npz", input=inputs[0, 0])
    np.savez("other.npz", x=inputs)
    np.savez("wide.npz", input=inputs[:, :5])
    for names, wrong in (
        (["wrong.npz"], "each array needs the rows along its first axis"),
        (["other.npz"], r"needs an array for each input \(input\), and has x"),
        (["wide.npz"], r"input input has shape \(\d+, 5\)"),
        (["data/images/rows.npz", "wide.npz"], "ask for one at a time"),
        (["rows.csv"], "is no .npz: the engine takes arrays"),
        (["none.npz"], "^none.npz cannot be read"),
    ):
        with pytest.raises(EnginewrightError, match=wrong):
            run_here("infer", engine, *names)
    with pytest.raises(EnginewrightError, match="takes arrays"):
        run_here("infer", engine, "data/images/rows.npz", "--pictures", "seen")


def test_a_segmenter_of_images_with_masks(project, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        Path("data/images/scenes", kind).mkdir(parents=True)
    for number in range(40):
        pixels = rng.integers(0, 256, (20, 24, 3), dtype=np.uint8)
        mask = pixels.argmax(axis=2).astype(np.uint8)
        mask[0] = 77
        Image.fromarray(pixels).save(f"data/images/scenes/images/{number}.jpg", quality=95)
        Image.fromarray(mask).save(f"data/images/scenes/masks/{number}.png")
    recipe = """
task: segmentation
model: {source: "networks:segmenter"}
weights: {source: given}
samples: {source: data/images/scenes, class_names: [red, green, blue], ignore: 77}
"""
    lay_over(recipe, "samples: {preprocessing: {resize: 16, crop: 16}}", TINY, "build: {pixels: nhwc}")
    record, found = run_pipeline(monkeypatch)
    assert [(spec.dtype, spec.shape) for spec in record.interface.inputs] == [("uint8", ("batch", 16, 16, 3))]
    assert (record.task, found.metric, found.agreement.name) == ("segmentation", "mIoU", "pixel agreement")
    assert 0 < found.main.engine < 1
    assert found.main.interval.low <= found.main.drop <= found.main.interval.high
    summary = Path("reports/summary.md").read_text()
    assert "mIoU" in summary
    assert "% of the pixels of 24 images" in summary
    assert "mIoU_drop_%" in json.loads(Path("reports/metrics.json").read_text())["int8"]
    capsys.readouterr()
    assert run_here("infer", "artifacts/engines/int8", "data/images/scenes/images/0.jpg", "--json") == 0
    areas = json.loads(capsys.readouterr().out)["areas"]
    assert sum(area["share"] for area in areas) == pytest.approx(1)
    assert {area["class"] for area in areas} <= {"red", "green", "blue"}


@pytest.mark.parametrize("nms", ["outside", "graph"])
def test_a_detector_of_annotated_images(project, monkeypatch, capsys, nms):
    rng, entries, annotations = np.random.default_rng(0), [], []
    Path("data/images/cells").mkdir(parents=True)
    for number in range(40):
        pixels = np.zeros((64, 32, 3), np.uint8)
        for place in rng.choice(16, 2, replace=False).tolist():
            (top, left), colour = divmod(place, 4), int(rng.integers(2))
            pixels[top * 16 : top * 16 + 16, left * 8 : left * 8 + 8, colour] = 255
            box = [left * 8, top * 16, 8, 16]
            annotations.append({"id": len(annotations), "image_id": number, "category_id": colour, "bbox": box})
        Image.fromarray(pixels).save(f"data/images/cells/{number}.png")
        entries.append({"id": number, "file_name": f"{number}.png"})
    categories = [{"id": number, "name": name} for number, name in enumerate(("red", "green"))]
    document = {"images": entries, "annotations": annotations, "categories": categories}
    Path("data/images/cells/annotations.json").write_text(json.dumps(document))
    recipe = """
task: detection
model: {source: "networks:Detector", boxes: {nms: NMS, most: 20}}
weights: {source: given}
samples: {source: data/images/cells}
"""
    stretched = "{resize: 32, resize_mode: stretch, crop: 32, mean: [0, 0, 0], std: [1, 1, 1]}"
    pixels = "nchw" if nms == "graph" else "null"
    lay_over(
        recipe.replace("NMS", nms), f"samples: {{preprocessing: {stretched}}}", TINY, f"build: {{pixels: {pixels}}}"
    )
    record, found = run_pipeline(monkeypatch)
    returned = {spec.name: spec.shape[1:] for spec in record.interface.outputs}
    raw, chosen = (
        {"boxes": (16, 4), "scores": (16, 2)},
        {"boxes": (20, 4), "scores": (20,), "classes": (20,), "count": (1,)},
    )
    assert returned == (chosen if nms == "graph" else raw)
    assert (record.task, found.metric, found.agreement.name) == ("detection", "mAP", "box agreement")
    assert [result.name for result in found.results] == ["mAP", "mAP50"]
    assert found.main.reference == 1
    assert found.main.interval.low <= found.main.drop <= found.main.interval.high
    page = Path("reports/report.html").read_text()
    assert page.count('<img src="data:image/jpeg;base64,') == 3
    assert "Where int8 differs most: PyTorch on the left, the engine on the right" in page
    capsys.readouterr()
    last, drawn = Path("data/images/cells/39.png"), Path("drawn")
    assert run_here("infer", "artifacts/engines/int8", last, "--json", "--pictures", drawn) == 0
    boxes = json.loads(capsys.readouterr().out)["boxes"]
    known = sorted(each["bbox"] for each in annotations if each["image_id"] == 39)
    corners = sorted(box["box"] for box in boxes)
    assert corners == [pytest.approx([x, y, x + w, y + h], abs=1) for x, y, w, h in known]
    with Image.open(drawn / "39.png") as picture:
        assert picture.size == (32, 64)
    with pytest.raises(EnginewrightError, match="holds the images themselves"):
        run_here("infer", "artifacts/engines/int8", last, "--pictures", last.parent)
    told = bundled_answers(last)
    assert [line[1] for line in told] == [box["class"] for box in boxes]
    assert [[float(value) for value in line[3].split()] for line in told] == [
        pytest.approx(box["box"], abs=0.11) for box in boxes
    ]


def bundled_answers(image):
    """Return what the example of a bundle says, line by line."""
    write_bundle(require_passed("int8", Path("artifacts"), Path("reports")), Params.read(), Path("bundle"))
    command = [sys.executable, "bundle/infer.py", str(image)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return [line.split("\t") for line in done.stdout.splitlines()]


def test_an_encoder_of_pairs_with_scores(project, monkeypatch):
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 50, (40, 2, 7))
    mask = np.arange(7) < rng.integers(2, 8, (40, 2, 1))
    np.savez("data/images/pairs.npz", ids=ids, mask=mask.astype(np.int64), scores=rng.random(40))
    recipe = """
task: embedding
model: {source: "networks:Encoder"}
weights: {source: given}
samples: {source: data/images/pairs.npz, preprocessing: null}
"""
    lay_over(recipe, TINY)
    found = validated(monkeypatch)
    assert (found.samples, found.main.name) == (48, "Spearman")  # TINY asks for 24 pairs
    assert -1 <= found.main.engine <= 1
    assert found.agreement.share > 0.5


def test_a_task_of_the_users_own(project, monkeypatch):
    rng = np.random.default_rng(0)
    np.savez("data/images/rows.npz", input=rng.normal(size=(40, 6)).astype(np.float32), truth=rng.random((40, 2)) > 0.5)
    recipe = """
task: signs:Signs
model: {source: "networks:regressor"}
weights: {source: given}
samples: {source: data/images/rows.npz, preprocessing: null}
"""
    lay_over(recipe, TINY)
    assert validated(monkeypatch).main.name == "right signs"
    assert EngineRecord.read(Path("artifacts/engines/int8/engine.json")).task == "signs:Signs"
    stages = ("validate", "build")
    code = {stage: json.loads(Path(f"artifacts/code/{stage}.json").read_text())["task"] for stage in stages}
    assert (list(code["validate"]), code["build"]) == (["signs.py"], {})
