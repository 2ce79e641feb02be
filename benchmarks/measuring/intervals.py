"""Find how often the intervals around drops and agreements hold what is true, on made-up samples of a known truth.

    python3 benchmarks/measuring/intervals.py            # a quarter of an hour; --sets 50 for a shorter look

An interval of 95 % must hold the truth in 95 of 100 sets of samples. Each world has samples, a model that answers well,
and an engine whose answers differ a little, as int8 does; the tasks measure them by their own code. The truth is the
mean over all sets, as mAP and the neighbours that are kept depend on how many samples there are.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.core.facts import COUNTED, NO_CLASS
from enginewright.core.params.model import BoxesParams
from enginewright.measure.intervals import agreement_at, drop_at
from enginewright.measure.records import Interval
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Task

Array = NDArray[Any]
CLASSES, SIDE, NUMBERS, ANSWERS, OBJECTS, OTHERS = 5, 16, 16, 8, 4, 3


class World(NamedTuple):
    """Hold what PyTorch and the engine answer, and what is known."""

    wanted: Array
    got: Array
    truth: Array


Draw = Callable[[np.random.Generator, int], World]


def labels(rng: np.random.Generator, count: int, lost: float) -> World:
    """Classes of which the right one comes first, among the best five, or later; the engine gains half of what it
    loses."""
    first, among = 0.95, 0.04
    moves = {(0, 0): first - lost, (0, 1): lost, (1, 0): lost / 2, (1, 1): among - lost, (1, 2): lost / 2,
             (2, 1): lost / 4, (2, 2): 1 - first - among - lost / 4}  # fmt: skip
    places = np.array(list(moves))[rng.choice(len(moves), count, p=list(moves.values()))]
    scores = np.tile(-np.arange(30.0), (2, count, 1))
    scores[..., 0] = np.array([0.5, -2.5, -9.5])[places.T]
    return World(scores[0], scores[1], np.zeros(count, np.int64))


def masks(rng: np.random.Generator, count: int) -> World:
    """Images in which some classes are rare, and all pixels of a class are alike hard. In most the engine has the same
    answer for nearly all pixels, in some for few."""
    pixels = (count, SIDE * SIDE)

    def by_class(shares: Array) -> Array:
        return np.asarray(np.take_along_axis(shares, known, 1))

    areas = rng.dirichlet(np.full(CLASSES, 0.4), count).cumsum(axis=1)
    known = np.minimum((rng.random((*pixels, 1)) > areas[:, np.newaxis]).sum(axis=2), CLASSES - 1)
    wrong = (known + rng.integers(1, CLASSES, pixels)) % CLASSES
    wanted = np.where(rng.random(pixels) < by_class(rng.beta(12, 1.5, (count, CLASSES))), known, wrong)
    other = np.where(rng.random(pixels) < 0.3, known, wrong)
    got = np.where(rng.random(pixels) < rng.beta(0.3, 6, (count, 1)), other, wanted)
    scores = np.eye(CLASSES, dtype=np.float32)[np.stack([wanted, got])].transpose(0, 1, 3, 2)
    wanted, got = scores.reshape(2, count, CLASSES, SIDE, SIDE)
    return World(wanted, got, known.reshape(count, SIDE, SIDE))


def scenes(rng: np.random.Generator, count: int) -> World:
    """Images of one to four objects, some of rare classes. The model finds most, in some images worse than in others,
    and a few that are not there."""
    rows = OBJECTS + OTHERS
    there = np.arange(rows) < rng.integers(1, OBJECTS + 1, (count, 1))
    false = (np.arange(rows) >= OBJECTS) & (rng.random((count, rows)) < 0.4)
    places, sizes = rng.uniform(0, 400, (count, rows, 2)), rng.uniform(40, 200, (count, rows, 2))
    boxes = np.concatenate([places, places + sizes], axis=2)
    classes = rng.choice(CLASSES, (count, rows), p=[0.4, 0.3, 0.15, 0.1, 0.05])
    truth = np.dstack([classes, boxes, np.full((count, rows), COUNTED)]).astype(np.float32)
    truth[~there] = (NO_CLASS, 0, 0, 0, 0, COUNTED)
    blur = rng.gamma(2, 0.03, (count, 1, 1)) * np.tile(sizes, 2)
    found = boxes + blur * rng.normal(0, 1, boxes.shape)
    scores = rng.beta(np.where(there, 6, 2), np.where(there, 2, 5)) * (false | there & (rng.random(there.shape) < 0.9))
    moved = found + 0.02 * np.tile(sizes, 2) * rng.normal(0, 1, boxes.shape)
    doubt = np.clip(scores + rng.normal(0, 0.03, scores.shape) * (scores > 0), 0, 1)
    doubt *= rng.random(scores.shape) > 0.01
    both = np.stack([np.dstack([found, scores, classes]), np.dstack([moved, doubt, classes])])
    wanted, got = np.take_along_axis(both, np.argsort(-both[..., 4:5], axis=2), axis=2)
    return World(wanted, got, truth)


def texts(rng: np.random.Generator, count: int) -> World:
    """Pairs with scores from 0 to 5 in steps, as people give them, and vectors whose cosines follow them."""
    score = rng.integers(0, 11, count) / 2
    cosine = np.clip(score / 5 + rng.normal(0, 0.25, count), -0.99, 0.99)[:, np.newaxis]
    one, other = rng.normal(0.7, 1, (2, count, NUMBERS))
    one /= np.linalg.norm(one, axis=1, keepdims=True)
    other -= one * (one * other).sum(axis=1, keepdims=True)
    other *= np.sqrt(1 - cosine**2) / np.linalg.norm(other, axis=1, keepdims=True)
    vectors = np.stack([one, cosine * one + other], axis=1).reshape(-1, NUMBERS)
    error = rng.gamma(2, 0.01, (len(vectors), 1)) * rng.normal(0, 1, vectors.shape)
    return World(vectors, vectors + error, score)


def answers(rng: np.random.Generator, count: int, each: int) -> World:
    """Answers with targets from 0 to 3, so many to each of the questions, some of which are harder."""
    target = rng.choice(4, (count, each), p=[0.5, 0.25, 0.15, 0.1]).astype(float)
    wanted = target + rng.gamma(4, 0.25, (count, 1)) * rng.normal(0, 1, target.shape)
    got = wanted + rng.gamma(2, 0.05, (count, 1)) * rng.normal(0, 1, target.shape)
    known = np.column_stack([target.ravel(), np.repeat(np.arange(count), each) if each > 1 else np.zeros(count)])
    return World(wanted.reshape(-1, 1), got.reshape(-1, 1), known)


def targets(rng: np.random.Generator, count: int) -> World:
    """Targets with errors of heavy tails, to which the engine adds its own."""
    known = rng.normal(0, 1, (count, 1))
    wanted = known + 0.3 * rng.standard_t(6, (count, 1))
    return World(wanted, wanted + 0.05 * rng.normal(0, 1, (count, 1)) + 0.02 * known, known)


class Case(NamedTuple):
    name: str
    task: Task
    draw: Draw
    samples: tuple[int, ...] = (64, 512)


def cases() -> list[Case]:
    boxes = task_of("detection", None, [str(number) for number in range(CLASSES)], BoxesParams(form="end_to_end"))
    of_classes = task_of("classification", None, [str(number) for number in range(30)])
    return [
        *[
            Case(f", {100 * lost:.2g} % lost", of_classes, partial(labels, lost=lost), (64, 512, 5000))
            for lost in (0.004, 0.02)
        ],
        Case("", boxes, scenes),
        Case("", task_of("segmentation"), masks),
        Case("", task_of("embedding"), texts),
        Case(" of one question", task_of("ranking"), partial(answers, each=1)),
        Case(" of each question", task_of("ranking"), partial(answers, each=ANSWERS)),
        Case("", task_of("regression"), targets),
    ]


class Figure(NamedTuple):
    name: str
    value: float
    interval: Interval


def figures(task: Task, world: World) -> Iterator[Figure]:
    """Yield the drop of each metric, and the agreement."""
    places = np.arange(len(world.wanted))
    task, both = task.knowing(world.truth, places), [{"out": world.wanted}, {"out": world.got}]
    statistics = [task.measure(each, world.truth, places) for each in both]
    for metric, wanted, got in zip(task.metrics, *statistics, strict=False):
        drop = (metric.over(wanted) - metric.over(got)) * (1 if metric.higher_is_better else -1)
        yield Figure(metric.name, drop, drop_at(metric, wanted, got)(len(wanted)))
    if task.agreement and (shares := task.agree(*both)) is not None:
        interval = agreement_at(shares, task.together, task.in_pairs)(len(shares))
        yield Figure(task.agreement, float(shares.mean()), interval)


def print_rows(case: Case, samples: int, sets: int, rng: np.random.Generator) -> None:
    found = defaultdict(list)
    for _ in range(sets):
        for figure in figures(case.task, case.draw(rng, samples)):
            found[figure.name].append((figure.value, figure.interval))
    for name, every in found.items():
        truth = np.mean([value for value, _ in every])
        held = np.mean([one.low <= truth <= one.high for _, one in every])
        width = np.mean([one.high - one.low for _, one in every])
        print(f"| {name}{case.name} | {samples} | {held:.1%} | {truth:.4f} | {width:.4f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(f"| figure | samples | holds the truth, of {options.sets} sets | truth | mean width |\n|---|---|---|---|---|")
    for case in cases():
        for samples in case.samples:
            print_rows(case, samples, options.sets, rng)


if __name__ == "__main__":
    main()
