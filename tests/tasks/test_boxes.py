"""Boxes of a detector's outputs: their forms, and the best of overlapping ones as torchvision chooses them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torchvision.ops import batched_nms, box_iou

from enginewright.tasks.boxes import best_of_overlapping, find_boxes, overlaps

SIZE = (100, 200)  # height and width
SCORES = np.array([[0.9, 0.2, 0.01], [0.1, 0.6, 0.3]], np.float32)  # of two places and three classes
CORNERS = np.array([[10, 20, 50, 60], [100, 10, 140, 90]], np.float32)
WANTED = [[10, 20, 50, 60, 0.9, 0], [100, 10, 140, 90, 0.6, 1], [100, 10, 140, 90, 0.3, 2], [10, 20, 50, 60, 0.2, 1]]


def read(form, *outputs, unit="pixels", score=0.15, **more):
    how = SimpleNamespace(form=form, unit=unit, score=score, iou=0.5, most=100, **more)
    return find_boxes([np.asarray(output, np.float32) for output in outputs], how, SIZE)


def random_boxes(count, classes, seed):
    rng = np.random.default_rng(seed)
    begin = rng.uniform(0, 80, (count, 2)).astype(np.float32)
    boxes = np.concatenate([begin, begin + rng.uniform(5, 40, (count, 2)).astype(np.float32)], axis=1)
    return boxes, rng.permutation(count).astype(np.float32) / count, rng.integers(0, classes, count)


@pytest.mark.parametrize(("count", "classes", "iou"), [(0, 1, 0.5), (40, 1, 0.3), (900, 3, 0.5), (2000, 80, 0.7)])
def test_the_best_of_overlapping_boxes_are_those_of_torchvision(count, classes, iou):
    boxes, scores, kinds = random_boxes(count, classes, seed=count)
    wanted = batched_nms(*map(torch.from_numpy, (boxes, scores, kinds)), iou).tolist()
    order = np.argsort(-scores, kind="stable")
    found = order[best_of_overlapping(boxes[order], kinds[order], iou, 10**6)].tolist()
    assert found == wanted
    assert order[best_of_overlapping(boxes[order], kinds[order], iou, 7)].tolist() == wanted[:7]


def test_overlaps_are_those_of_torchvision_or_shares_of_the_first_box():
    one, other = random_boxes(9, 1, 0)[0], random_boxes(7, 1, 1)[0]
    assert overlaps(one, other) == pytest.approx(box_iou(torch.from_numpy(one), torch.from_numpy(other)).numpy())
    inside = np.array([[10.0, 10, 20, 20], [0, 0, 0, 0]]), np.array([[0.0, 0, 100, 100]])
    assert overlaps(*inside, np.array([True])).tolist() == [[1], [0]]


def centred(corners):
    return np.concatenate([(corners[:, :2] + corners[:, 2:]) / 2, corners[:, 2:] - corners[:, :2]], axis=1)


WIDE = np.concatenate([CORNERS[:, :2], CORNERS[:, 2:] - CORNERS[:, :2]], axis=1)
SHARES = centred(CORNERS) / [200, 100, 200, 100]
LOGITS = np.log(SCORES / (1 - SCORES))
WITH_NOTHING = np.log(np.column_stack([[0.7, 0.2], [0.2, 0.6], [0.1, 0.2]]))  # the last class is nothing


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (read("xyxy", CORNERS, SCORES), WANTED),
        (read("xywh", WIDE, SCORES), WANTED),
        (read("cxcywh", centred(CORNERS), SCORES), WANTED),
        (read("xyxy", CORNERS / [200, 100, 200, 100], SCORES, unit="shares"), WANTED),
        (read("rtdetr", SHARES, LOGITS, unit="shares"), WANTED),
        (read("detr", SHARES, WITH_NOTHING, unit="shares"), [[*CORNERS[0], 0.7, 0], [*CORNERS[1], 0.6, 1]]),
        (read("yolov8", np.concatenate([centred(CORNERS), SCORES], axis=1).T), WANTED),
        (read("yolov5", np.column_stack([centred(CORNERS), [1, 0.5], SCORES / [[1], [0.5]]])), WANTED),
        (read("end_to_end", [[*CORNERS[1], 0.4, 2], [*CORNERS[0], 0.1, 1]]), [[*CORNERS[1], 0.4, 2]]),
        (read("xyxy", [*CORNERS, *CORNERS + 1], [*SCORES, *SCORES - 0.05]), WANTED),  # the worse ones lie on the better
        (read("xyxy", CORNERS, np.full((2, 3), np.nan)), np.empty((0, 6))),
    ],
)
def test_each_form_is_read(found, wanted):
    assert found == pytest.approx(np.array(wanted), abs=1e-4)
