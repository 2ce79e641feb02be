"""Find how often the intervals around drops and agreements hold what is true, on made-up samples of a known truth.

    python3 benchmarks/intervals.py            # some minutes; --sets 100 for a shorter look

An interval of 95 % must hold the truth in 95 of 100 sets of samples. Each row is a task with a model that answers well,
and an engine whose answers differ a little, as int8 does. The truth of bootstrapped figures is that of a huge set.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from enginery.accuracy.intervals import interval_of_agreement, interval_of_drop
from enginery.accuracy.records import Interval
from enginery.tasks.choose import task_of
from enginery.tasks.task import Metric, Statistics

HUGE = 200_000
CLASSES = 5


class Pair(NamedTuple):
    """The statistics of PyTorch's answers and of the engine's, for the same samples."""

    wanted: Statistics
    got: Statistics


class Case(NamedTuple):
    name: str
    metric: Metric
    samples: int
    draw: Callable[[np.random.Generator, int], Pair]


def shares(lost: float, gained: float, right: float = 0.95) -> Callable[[np.random.Generator, int], Pair]:
    def draw(rng: np.random.Generator, count: int) -> Pair:
        kind = rng.choice(4, count, p=[lost, gained, right - lost, 1 - right - gained])
        return Pair(np.isin(kind, (0, 2)).astype(float), np.isin(kind, (1, 2)).astype(float))

    return draw


def masks(rng: np.random.Generator, count: int) -> Pair:
    """Images in which some classes are rare, and in which all pixels of a class are alike hard."""
    areas = rng.dirichlet(np.full(CLASSES, 0.4), count) * 4096
    hard = rng.beta(12, 1.5, (count, CLASSES))
    worse = np.clip(hard - rng.exponential(0.01, (count, CLASSES)) + rng.normal(0.005, 0.01, (count, CLASSES)), 0, 1)
    return Pair(*(np.stack([areas * good, areas * (2 - good)], axis=1).round() for good in (hard, worse)))


def targets(rng: np.random.Generator, count: int) -> Pair:
    """Targets with errors of heavy tails, to which the engine adds its own."""
    known = rng.normal(0, 1, (count, 1))
    error = 0.3 * rng.standard_t(6, (count, 1))
    engine = error + 0.05 * rng.normal(0, 1, (count, 1)) + 0.02 * known
    return Pair(*(np.stack([each**2, known, known**2], axis=1) for each in (error, engine)))


def errors(rng: np.random.Generator, count: int) -> Pair:
    return Pair(*(each[:, 0, 0] for each in targets(rng, count)))


def pairs(rng: np.random.Generator, count: int) -> Pair:
    """Scores from 0 to 5 in steps, as people give them, and cosines that follow them."""
    score = rng.integers(0, 11, count) / 2
    cosine = score / 5 + rng.normal(0, 0.25, count)
    return Pair(*(np.column_stack([each, score]) for each in (cosine, cosine + rng.normal(0, 0.03, count))))


def cases() -> list[Case]:
    accuracy, miou, spearman = (task_of(name).metrics[0] for name in ("classification", "segmentation", "embedding"))
    r2, rmse = task_of("regression").metrics
    discordant = [(samples, lost) for samples in (64, 512, 5000) for lost in (0.004, 0.02)]
    drawn = [("mIoU", miou, masks), ("R²", r2, targets), ("RMSE", rmse, errors), ("Spearman", spearman, pairs)]
    return [
        *[
            Case(f"accuracy, {lost:.1%} lost", accuracy, samples, shares(lost, lost / 2))
            for samples, lost in discordant
        ],
        *[Case(name, metric, samples, draw) for samples in (64, 512) for name, metric, draw in drawn],
    ]


def drops(case: Case, sets: int, rng: np.random.Generator) -> tuple[float, list[Interval]]:
    """Return the true drop, and an interval for each set of samples."""
    sign, huge = (1 if case.metric.higher_is_better else -1), case.draw(rng, HUGE)
    truth = sign * (case.metric.over(huge.wanted) - case.metric.over(huge.got))
    return truth, [interval_of_drop(case.metric, *case.draw(rng, case.samples)) for _ in range(sets)]


def agreements(samples: int, sets: int, rng: np.random.Generator) -> Iterator[tuple[str, float, list[Interval]]]:
    whole = [interval_of_agreement((rng.random(samples) < 0.99).astype(float)) for _ in range(sets)]
    yield "top-1 agreement of 99 %", 0.99, whole
    parts = [interval_of_agreement(rng.beta(9.7, 0.3, samples)) for _ in range(sets)]
    yield "pixel agreement of 97 %", 0.97, parts


def print_row(name: str, samples: int, truth: float, found: Sequence[Interval]) -> None:
    held, width = (
        np.mean([one.low <= truth <= one.high for one in found]),
        np.mean([one.high - one.low for one in found]),
    )
    print(f"| {name} | {samples} | {held:.1%} | {width:.4f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(f"| figure | samples | holds the truth, of {options.sets} sets | mean width |\n|---|---|---|---|")
    for case in cases():
        print_row(case.name, case.samples, *drops(case, options.sets, rng))
    for samples in (64, 512):
        for name, truth, found in agreements(samples, options.sets, rng):
            print_row(name, samples, truth, found)


if __name__ == "__main__":
    main()
