"""Detection by itself: which outputs it reads, its metrics and its agreement, and the faults that these catch."""

import re

import numpy as np
import pytest
from PIL import Image

from enginewright.core.facts import COUNTED
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.precisions import Thresholds
from enginewright.core.params.samples import Preprocessing
from enginewright.data.preprocessing import pixels_of, prepare
from enginewright.data.sources.truth import Boxes
from enginewright.measure.agreement import agreement_of, broken_thresholds, compare, measure, origin_of_loss
from enginewright.tasks.choose import misfit_of, task_of

SIDE, CELL, IMAGES = 64, 8, 24
CELLS = np.array([(x, y, x + CELL, y + CELL) for y in range(0, SIDE, CELL) for x in range(0, SIDE, CELL)], np.float32)
HOW = Preprocessing(
    resize=SIDE, resize_mode="pad", crop=SIDE, interpolation="nearest", mean=(0, 0, 0), std=(1, 1, 1), fill=0
)
LIMITS = Thresholds(cosine=0, relative_error=9e9, agreement=0.97, metric_drop=0.01)
NAMES = ("red", "green", "blue")


def detect(inputs):
    """A detector by hand: a cell is an object of the colour that fills it."""
    cells = inputs.reshape(len(inputs), 3, SIDE // CELL, CELL, SIDE // CELL, CELL).mean(axis=(3, 5))
    scores = 1 / (1 + np.exp(-20 * (cells.reshape(len(inputs), 3, -1).transpose(0, 2, 1) - 0.5)))
    return {"boxes": np.repeat(CELLS[np.newaxis], len(inputs), axis=0), "scores": scores.astype(np.float32)}


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """Return images, twice as wide as high, with squares of one colour, and the boxes that are known of them."""
    rng, folder, files, rows = np.random.default_rng(0), tmp_path_factory.mktemp("scenes"), [], []
    for number in range(IMAGES):
        pixels, found = np.zeros((SIDE, 2 * SIDE, 3), np.uint8), []
        for place in rng.choice(32, 3, replace=False):
            top, left, colour = place // 8 * 2 * CELL, place % 8 * 2 * CELL, rng.integers(3)
            pixels[top : top + 2 * CELL, left : left + 2 * CELL, colour] = 255
            found.append([colour, left, top, left + 2 * CELL, top + 2 * CELL, COUNTED])
        files.append(folder / f"{number}.png")
        Image.fromarray(pixels).save(files[-1])
        rows.append(np.array(found, float))
    known = Boxes(rows, lambda index, row: "")
    return files, np.stack([known.prepare(index, HOW, (2 * SIDE, SIDE)) for index in range(IMAGES)])


def outputs_of(files, how=HOW):
    return detect(np.stack([prepare(file, how) for file in files]))


def broken(wanted, got, truth):
    task = task_of("detection", None, NAMES, preprocessing=HOW)
    result = measure(task, (wanted, got, got), truth, LIMITS)[0]
    agreement = agreement_of(task, wanted, got, LIMITS, "images")
    return result, agreement, broken_thresholds(compare(wanted, got), agreement, result, LIMITS)


def test_boxes_that_are_found_through_padding_have_a_map_of_one(scenes):
    files, truth = scenes
    result, agreement, why = broken(outputs_of(files), outputs_of(files), truth)
    assert (result.reference, result.engine, agreement.share, why) == (1, 1, 1, ())


FAULTS = {
    "anchors shifted by one": lambda outputs, _: outputs | {"boxes": np.roll(outputs["boxes"], 1, axis=1)},
    "classes swapped": lambda outputs, _: outputs | {"scores": outputs["scores"][..., [1, 0, 2]]},
    "wrong padding value": lambda _, files: outputs_of(files, HOW.model_copy(update={"fill": 255})),
    "boxes of another form": lambda outputs, _: outputs | {"boxes": outputs["boxes"][..., [1, 0, 3, 2]]},
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_is_put_in_breaks_thresholds(fault, scenes):
    files, truth = scenes
    wanted = outputs_of(files)
    result, agreement, why = broken(wanted, FAULTS[fault](wanted, files), truth)
    assert re.match("box agreement .* is below 97.00%", why[0])
    assert re.match("mAP drop .* is above 1.00%", why[1])
    assert result.interval.low > 0.01 < 1 - agreement.share


@pytest.mark.parametrize("nms", ["outside", "graph"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_blamed_on_the_side_that_has_it(fault, nms, scenes):
    files, _ = scenes
    task = task_of("detection", None, NAMES, BoxesParams(nms=nms), HOW)
    right = outputs_of(files)
    wrong = FAULTS[fault](right, files)
    if nms == "graph":
        right, wrong = task.as_engine(right), task.as_engine(wrong)
    for graph, engine, blamed in ((wrong, wrong, "precision"), (right, wrong, "compiler")):
        pairs = (right, engine), (right, graph), (graph, engine)
        errors = [compare(*task.comparable(*pair)) for pair in pairs]
        limits = LIMITS.model_copy(update={"relative_error": 0.15})  # that of int8
        if fault != "boxes of another form" or nms == "graph":  # whose scores are right
            assert "relative error" in broken_thresholds(errors[0], None, None, limits)[0]
        assert origin_of_loss(*errors[1:]) == blamed


def test_outputs_without_boxes_stay_as_they_are():
    """The stage reference may come before export, which says what they lack."""
    outputs = {"scores": np.zeros((2, 3), np.float32)}
    assert task_of("detection", None, (), BoxesParams(nms="graph")).as_engine(outputs) is outputs


def test_boxes_that_a_model_chose_are_compared_whatever_their_order():
    """Boxes of nearly the same score swap places; one that only the engine has counts by its score."""
    task = task_of("detection", None, NAMES, BoxesParams(most=4))
    first = np.array([[[0, 0, 8, 8, 0.9, 0], [20, 0, 28, 8, 0.5, 1], [40, 0, 48, 8, 0.4999, 1]]], np.float32)
    swapped = first[:, [0, 2, 1]] + np.array([0, 0, 0, 0, 0.0002, 0], np.float32)
    other = swapped.copy()
    other[0, 2] = [60, 0, 68, 8, 0.06, 2]
    for got, error in ((swapped, 3e-4), (other, np.hypot(0.5, 0.06) / np.hypot(np.hypot(0.9, 0.5), 0.4999))):
        one, two = task.comparable({"found": first}, {"found": got})
        assert compare({"s": one["scores"]}, {"s": two["scores"]}).relative == pytest.approx(error, rel=0.1)
        assert compare({"b": one["boxes"]}, {"b": two["boxes"]}).relative == 0
    raw = {"boxes": first[..., :4], "scores": first[..., 3:]}
    assert task.comparable(raw, raw)[0] is raw


def test_agreement_forgives_a_score_at_the_limit_and_nothing_else():
    task = task_of("detection", None, NAMES)
    boxes = CELLS[np.newaxis, :2]
    wanted = {"boxes": boxes, "scores": np.array([[[0.31, 0, 0], [0.9, 0, 0]]], np.float32)}
    for scores, share in (
        ([[0.29, 0, 0], [0.9, 0, 0]], 1),
        ([[0.14, 0, 0], [0.9, 0, 0]], 2 / 3),  # two of PyTorch's and one of the engine's are sure
        ([[0, 0.31, 0], [0.9, 0, 0]], 1 / 2),
        ([[0, 0, 0], [0, 0, 0]], 0),
    ):
        assert task.agree(wanted, {"boxes": boxes, "scores": np.array([scores], np.float32)}) == [pytest.approx(share)]
    nothing = {"boxes": boxes, "scores": np.zeros((1, 2, 3), np.float32)}
    assert task.agree(nothing, nothing) == [1]


PAIR = {"boxes": (2, 50, 4), "scores": (2, 50, 3)}


@pytest.mark.parametrize(
    ("shapes", "classes", "given", "form"),
    [
        (PAIR, 3, {}, "xyxy"),
        (PAIR, 0, {}, "xyxy"),
        ({"boxes": (2, 50, 4), "scores": (2, 50, 4)}, 4, {}, "xyxy"),
        ({"pred_boxes": (2, 50, 4), "logits": (2, 50, 4)}, 3, {}, "detr"),
        ({"pred_boxes": (2, 50, 4), "logits": (2, 50, 3)}, 3, {}, "rtdetr"),
        ({"output0": (2, 7, 8400)}, 3, {}, "yolov8"),
        ({"output0": (2, 84, 8400)}, 0, {}, "yolov8"),
        ({"output0": (2, 8400, 8)}, 3, {}, "yolov5"),
        ({"output0": (2, 300, 6)}, 3, {}, "end_to_end"),
        ({"output0": (2, 300, 6)}, 1, {"form": "yolov5"}, "yolov5"),
        (PAIR, 3, {"form": "cxcywh"}, "cxcywh"),
        ({**PAIR, "boxes_2": (2, 50, 4)}, 3, {"output": "scores"}, None),
        ({"output0": (2, 7, 8400), "output1": (2, 7, 8400)}, 3, {"output": "output1"}, "yolov8"),
    ],
)
def test_outputs_are_recognized_by_their_shapes_and_names(shapes, classes, given, form):
    how = BoxesParams(form=given.get("form", "auto"))
    layout = task_of("detection", given.get("output"), [str(each) for each in range(classes)], how).layout(shapes)
    assert layout == form if form is None else layout.form == form


@pytest.mark.parametrize(
    ("shapes", "truth", "told"),
    [
        ({"out": (2, 3)}, None, r"^task: no outputs have boxes with scores of 3 classes: .* returns out \(2, 3\)"),
        (
            {"output0": (2, 84, 8400)},
            None,
            "^samples.source has 3 classes, and output output0 has 80, if it is yolov8: samples.class_names lists all",
        ),
        (PAIR | {"more": (2, 50, 3)}, None, "model.scores: boxes may be boxes with scores, boxes with more: name"),
        (PAIR, np.full((5, 1, 6), 3.0), "samples.source: a box has the class 3, and output scores has 3 classes"),
        (PAIR, np.full((5, 1, 6), 2.0), None),
        (PAIR, np.empty((5, 0, 6)), None),
    ],
)
def test_outputs_that_do_not_fit_are_refused_in_a_sentence(shapes, truth, told):
    found = misfit_of(task_of("detection", None, NAMES), shapes, truth, NAMES)
    assert found is None if told is None else re.search(told, found)


def test_a_form_that_does_not_fit_is_told_from_one_that_does():
    task = task_of("detection", None, NAMES, BoxesParams(form="yolov8"))
    told = "model.boxes.form: output output0 is not yolov8, and may be end_to_end: set auto"
    assert misfit_of(task, {"output0": (2, 300, 6)}, None, NAMES).startswith(told)


def test_what_may_be_two_forms_is_asked_for():
    found = misfit_of(task_of("detection", None, ("one",)), {"output0": (2, 300, 6)}, None, ("one",))
    assert found.startswith("model.boxes.form: output output0 may be end_to_end or yolov5: say which")


@pytest.mark.parametrize("mode", ["pad", "stretch", "shorter_side"])
def test_boxes_are_told_in_pixels_of_the_image_itself(mode):
    """A corner that is drawn into an image is where the boxes, moved to the input and back, say that it is."""
    how = HOW.model_copy(update={"resize_mode": mode, "resize": (64, 64), "crop": (48, 56)})
    size, box = (300, 200), [150, 100, 180, 130]
    known = Boxes([np.array([[1, *box, COUNTED]], float)], lambda index, row: "").prepare(0, how, size)[0]
    pixels = np.zeros((200, 300, 3), np.uint8)
    pixels[box[1] : box[3], box[0] : box[2]] = 255
    seen = np.argwhere(pixels_of(Image.fromarray(pixels), how)[0] > 127)
    assert known[1:5] == pytest.approx([*seen.min(axis=0)[::-1], *seen.max(axis=0)[::-1] + 1], abs=1)
    task = task_of("detection", None, NAMES, preprocessing=how)
    scores = np.array([[[0, 0.9, 0]]], np.float32)
    (shown,) = task.show({"boxes": known[np.newaxis, np.newaxis, 1:5].astype(np.float32), "scores": scores}, 1)
    found = task.in_image(shown, how, size)
    (told,) = found.fields["boxes"]
    assert (told["class"], told["index"], told["score"]) == ("green", 1, 0.9)
    assert told["box"] == pytest.approx(box, abs=0.1)
    assert found.text == "green 90.0% at 150,100 to 180,130"
    drawn = np.asarray(task.draw(Image.new("RGB", size), found))
    assert drawn[box[1], box[0] : box[2]].any(axis=1).all()
