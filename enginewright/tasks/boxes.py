"""Turn what a detector returns for one image into boxes, with NumPy alone: a bundle holds a copy of this file.

Boxes that hardly anything speaks for are dropped, and of boxes of one class that lie on each other the best is kept."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.facts import COUNTED, CROWD, NO_CLASS

Rows = NDArray[Any]  # left, top, right, bottom, score and class of each box, the best first
PAIRS = ("xyxy", "xywh", "cxcywh", "detr", "rtdetr")  # forms of two outputs: boxes, and scores
CHOSEN = "chosen"  # the form of four outputs: boxes, scores, classes, and how many of the rows are boxes
DISTINCT = ("detr", "rtdetr", "end_to_end", CHOSEN)  # forms whose boxes are not found several times
MOST_CANDIDATES = 10_000  # of an image, which only networks that have learned nothing exceed
AT_ONCE = 256  # candidates that are compared with each other in one go


def find_boxes(outputs: Sequence[NDArray[Any]], how: Any, size: tuple[int, int] | None) -> Rows:
    """Return the boxes of one image in pixels of the model's input, whose height and width is `size`. `outputs` are
    boxes and scores, the one output that has both, or the four of CHOSEN. `how` has `form`, `unit`, `score`, `iou` and
    `most`."""
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


# COCO's average precision, also of sets that are drawn anew from the images. Detections are matched with what is
# known once. Drawing images anew then only changes how often each image counts, so the precision over recall of
# thousands of sets follows from sums over the same sorted detections.

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the overlap from which on a box is right
RECALLS = np.linspace(0, 1, 101)  # where the precision is read
Known = NDArray[Any]  # class, left, top, right, bottom and kind of each known box


@dataclass(frozen=True)
class OfClass:
    """The detections of one class in all images, the best first. Arrays of two axes have a row for each threshold."""

    image: NDArray[np.int64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    known: NDArray[np.float64]  # how many boxes of the class each image has


@dataclass(frozen=True)
class Matches:
    images: int
    classes: tuple[OfClass, ...]  # those that occur

    def __len__(self) -> int:
        return self.images


def match_all(pairs: Iterable[tuple[Rows, Known]]) -> Matches:
    """Match what was found in each image with what is known of it."""
    found, known, right, ignored = [], [], [], []
    for rows, there in pairs:
        there = there[there[:, 0] != NO_CLASS]
        matched = match(rows, there)
        found.append(rows[:, 4:])
        known.append(there[there[:, 5] == COUNTED, 0].astype(np.int64))
        right.append(matched[0])
        ignored.append(matched[1])
    images = len(found)
    if not images:
        return Matches(0, ())
    image = np.repeat(np.arange(images), [len(rows) for rows in found])
    (scores, classes), hits, passed = (
        np.concatenate(found).T,
        np.concatenate(right, axis=1),
        np.concatenate(ignored, axis=1),
    )
    where = np.repeat(np.arange(images), [len(each) for each in known])
    occurring, all_known = np.unique(np.concatenate(known)), np.concatenate(known)
    parts = []
    for each in occurring:
        places = np.flatnonzero(classes == each)
        places = places[np.argsort(-scores[places], kind="stable")]
        count = np.bincount(where[all_known == each], minlength=images).astype(np.float64)
        parts.append(OfClass(image[places], hits[:, places], passed[:, places], count))
    return Matches(images, tuple(parts))


def match(found: Rows, known: Known) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Tell of each detection, at each threshold, whether it is right, and whether it does not count, as COCO does: the
    best detection takes the known box that it overlaps most, first of those that count."""
    right, ignored = (np.zeros((len(THRESHOLDS), len(found)), bool) for _ in range(2))
    counted, crowd = known[:, 5] == COUNTED, known[:, 5] == CROWD
    shares = overlaps(found[:, :4], known[:, 1:5], crowd) * (found[:, 5:6] == known[:, 0])
    taken = np.zeros((len(THRESHOLDS), len(known)), bool)
    for index in np.flatnonzero((shares >= THRESHOLDS[0]).any(axis=1)):
        possible = (shares[index] >= THRESHOLDS[:, np.newaxis]) & (~taken | crowd)
        preferred = possible & counted
        possible = np.where(preferred.any(axis=1, keepdims=True), preferred, possible)
        levels = np.flatnonzero(possible.any(axis=1))
        last = np.where(possible[levels], shares[index], -1)[:, ::-1].argmax(axis=1)  # COCO takes the last of equals
        chosen = len(known) - 1 - last
        taken[levels, chosen] = True
        right[levels, index], ignored[levels, index] = counted[chosen], ~counted[chosen]
    return right, ignored


def mean_average_precision(matches: Matches, weights: NDArray[np.float64], levels: slice) -> NDArray[np.float64]:
    """Return for each set the mean over classes that occur in it, and over these levels of THRESHOLDS. A row of
    `weights` says how often a set holds each image."""
    often = np.ascontiguousarray(weights.T)
    total, count = np.zeros(len(weights)), np.zeros(len(weights))
    for each in matches.classes:
        known = weights @ each.known
        precisions = np.where(known > 0, _precision(each, often, np.maximum(known, 1), levels), 0)
        total, count = total + precisions, count + (known > 0)
    return np.asarray(total / np.maximum(count, 1))


def _precision(
    each: OfClass, often: NDArray[np.float64], known: NDArray[np.float64], levels: slice
) -> NDArray[np.float64]:
    """Return the precision of each set, the mean over recalls and levels. Only right detections can be where a recall
    is reached, and where precision is highest, so that the many others need only be counted."""
    all_right, all_ignored = each.right[levels], each.ignored[levels]
    end = max(np.flatnonzero(all_right.any(axis=0)), default=-1) + 1
    held = often[each.image[:end]]
    before, sums = held.cumsum(axis=0), np.zeros(len(known))
    for right, ignored in zip(all_right[:, :end], all_ignored[:, :end], strict=True):
        places = np.flatnonzero(right)
        if not len(places):
            continue
        hits, counted = held[places].cumsum(axis=0), before[places]
        if ignored.any():
            counted = counted - (held * ignored[:, np.newaxis]).cumsum(axis=0)[places]
        precision = np.divide(hits, counted, out=np.zeros_like(hits), where=counted > 0)
        highest = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        reached = np.searchsorted(RECALLS, hits / known, side="right")
        sums += (highest * np.diff(reached, axis=0, prepend=0)).sum(axis=0)
    return np.asarray(sums / (len(RECALLS) * len(all_right)))
