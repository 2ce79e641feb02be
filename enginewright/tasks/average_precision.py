"""COCO's average precision, also of sets that are drawn anew from the images.

Detections are matched with what is known once. Drawing images anew then only changes how often each image counts, so
the precision over recall of thousands of sets follows from sums over the same sorted detections."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.facts import COUNTED, CROWD, NO_CLASS
from enginewright.tasks.boxes import Rows, overlaps

THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of the overlap from which on a box is right
RECALLS = np.linspace(0, 1, 101)  # where the precision is read
Floats = NDArray[np.float64]
Known = NDArray[Any]  # class, left, top, right, bottom and kind of each known box


@dataclass(frozen=True)
class OfClass:
    """The detections of one class in all images, the best first. Arrays of two axes have a row for each threshold."""

    image: NDArray[np.int64]
    right: NDArray[np.bool_]
    ignored: NDArray[np.bool_]
    known: Floats  # how many boxes of the class each image has


@dataclass(frozen=True)
class Matches:
    images: int
    classes: tuple[OfClass, ...]  # those that occur

    def __len__(self) -> int:
        return self.images


def match_all(pairs: Iterable[tuple[Rows, Known]]) -> Matches:
    """Match what was found in each image with what is known of it."""
    found, known, matched = [], [], []
    for rows, there in pairs:
        there = there[there[:, 0] != NO_CLASS]
        found.append(rows[:, 4:])
        known.append(there[there[:, 5] == COUNTED, 0].astype(np.int64))
        matched.append(match(rows, there))
    images = len(found)
    if not images:
        return Matches(0, ())
    image = np.repeat(np.arange(images), [len(rows) for rows in found])
    scores, classes = np.concatenate(found).T
    hits, passed = (np.concatenate(each, axis=1) for each in zip(*matched, strict=True))
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


def mean_average_precision(matches: Matches, weights: Floats, levels: slice) -> Floats:
    """Return for each set the mean over classes that occur in it, and over these levels of THRESHOLDS. A row of
    `weights` says how often a set holds each image."""
    often = np.ascontiguousarray(weights.T)
    total, count = np.zeros(len(weights)), np.zeros(len(weights))
    for each in matches.classes:
        known = weights @ each.known
        precisions = np.where(known > 0, _precision(each, often, np.maximum(known, 1), levels), 0)
        total, count = total + precisions, count + (known > 0)
    return np.asarray(total / np.maximum(count, 1))


def _precision(each: OfClass, often: Floats, known: Floats, levels: slice) -> Floats:
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
