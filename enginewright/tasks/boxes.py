"""Turn what a detector returns for one image into boxes, with NumPy alone: a bundle holds a copy of this file.

Boxes that hardly anything speaks for are dropped, and of boxes of one class that lie on each other the best is kept."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[Any]  # left, top, right, bottom, score and class of each box, the best first
PAIRS = ("xyxy", "xywh", "cxcywh", "detr", "rtdetr")  # forms of two outputs: boxes, and scores
CHOSEN = "chosen"  # the form of four outputs: boxes, scores, classes, and how many of the rows are boxes
DISTINCT = ("detr", "rtdetr", "end_to_end", CHOSEN)  # forms whose boxes are not found several times
MOST_CANDIDATES = 10_000  # of an image, which only networks that have learned nothing exceed
AT_ONCE = 256  # candidates that are compared with each other in one go


def find_boxes(outputs: Sequence[NDArray[Any]], how: Any, size: tuple[int, int] | None) -> Rows:
    """Return the boxes of one image in pixels of the model's input, whose height and width is `size`. `outputs` are
    boxes and scores, the one output that has both, or the four of CHOSEN. `how` is the section model.boxes."""
    boxes, scores, classes = _decoded(outputs, how)
    if how.unit == "shares" and size is not None:
        boxes = boxes * np.array([size[1], size[0]] * 2, boxes.dtype)
    best = np.argsort(-scores, kind="stable")[:MOST_CANDIDATES]
    boxes, scores, classes = boxes[best], scores[best], classes[best]
    kept = slice(how.most) if how.form in DISTINCT else best_of_overlapping(boxes, classes, how.iou, how.most)
    return np.column_stack([boxes[kept], scores[kept], classes[kept]])


def _decoded(outputs: Sequence[NDArray[Any]], how: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return corners, score and class of each box whose score is above the limit."""
    first = np.nan_to_num(outputs[0])
    if how.form == CHOSEN:
        scores, classes = outputs[1][: int(outputs[3][0])], outputs[2]
        (rows,) = np.nonzero(scores > how.score)
        return first[rows], scores[rows], classes[rows].round()
    if how.form == "end_to_end":
        rows = first[first[:, 4] > how.score]
        return rows[:, :4], rows[:, 4], rows[:, 5].round()
    if how.form == "yolov8":
        first = first.T
    boxes, scores = (first, np.nan_to_num(outputs[1])) if how.form in PAIRS else (first[:, :4], first[:, 4:])
    if how.form == "yolov5":
        scores = scores[:, :1] * scores[:, 1:]
    elif how.form == "rtdetr":
        scores = 1 / (1 + np.exp(-scores))
    elif how.form == "detr":  # a query is one object, or nothing, which is the last class
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        scores = (odds / odds.sum(axis=1, keepdims=True))[:, :-1]
        scores = np.where(scores == scores.max(axis=1, keepdims=True), scores, 0)
    places, classes = np.nonzero(scores > how.score)
    return corners(boxes[places], how.form), scores[places, classes], classes


def corners(boxes: NDArray[Any], form: str) -> NDArray[Any]:
    """Return left, top, right and bottom."""
    if form == "xyxy":
        return boxes
    begin, extent = boxes[:, :2], boxes[:, 2:]
    if form != "xywh":
        begin = begin - extent / 2
    return np.concatenate([begin, begin + extent], axis=1)


def best_of_overlapping(boxes: NDArray[Any], classes: NDArray[Any], iou: float, most: int) -> list[int]:
    """Return which boxes are kept, `most` at most: non-maximum suppression for each class. The best boxes come first;
    one is dropped if it overlaps a kept one of its class by more than `iou`."""
    kept: list[int] = []
    for start in range(0, len(boxes), AT_ONCE):
        few = np.arange(start, min(start + AT_ONCE, len(boxes)))
        few = few[~_overlap(boxes, classes, kept, few, iou).any(axis=0)]
        overlapping, left = _overlap(boxes, classes, few, few, iou), np.ones(len(few), bool)
        for place, index in enumerate(few.tolist()):
            if left[place]:
                kept.append(index)
                left &= ~overlapping[place]
            if len(kept) == most:
                return kept
    return kept


def _overlap(boxes: NDArray[Any], classes: NDArray[Any], one: Any, other: Any, iou: float) -> NDArray[np.bool_]:
    same = classes[one][:, np.newaxis] == classes[other]
    return np.asarray(same & (overlaps(boxes[one], boxes[other]) > iou))


def overlaps(one: NDArray[Any], other: NDArray[Any], of_first: NDArray[np.bool_] | None = None) -> NDArray[Any]:
    """Return the intersection of each box with each other box by their union, or, where `of_first` is true for the
    other box, by the area of the first alone."""
    low, high = np.maximum(one[:, np.newaxis, :2], other[:, :2]), np.minimum(one[:, np.newaxis, 2:4], other[:, 2:4])
    both = np.clip(high - low, 0, None).prod(axis=2)
    first, second = ((each[:, 2:4] - each[:, :2]).prod(axis=1) for each in (one, other))
    whole = first[:, np.newaxis] + second - both
    if of_first is not None:
        whole = np.where(of_first, first[:, np.newaxis], whole)
    return np.asarray(np.divide(both, whole, out=np.zeros_like(both), where=whole > 0))
