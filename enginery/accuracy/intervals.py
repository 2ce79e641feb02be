"""Intervals around figures of one sample set. PyTorch and the engine see the same samples, so what is drawn anew are
samples with both results: then a drop has a far narrower interval than two metrics that are compared as strangers."""

import math
from collections.abc import Callable, Sized
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from enginery.accuracy.records import Interval
from enginery.tasks.task import Metric, Statistics

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
DRAWS = 2000
DRAWN_AT_ONCE = 2**22  # weights in memory
SEED = 0
STEPS = 60  # halvings: more than the digits of a float
GROUPS = 100  # of samples, left out in turn


At = Callable[[int], Interval]  # the interval, had so many samples answered as those did that were seen


def interval_of_drop(metric: Metric, wanted: Sized, got: Sized) -> Interval:
    """Return the interval around how much worse `got` is than `wanted`."""
    return drop_at(metric, wanted, got)(len(wanted))


def drop_at(metric: Metric, wanted: Sized, got: Sized) -> At:
    if metric.is_share and isinstance(wanted, np.ndarray) and isinstance(got, np.ndarray):
        lost, gained = (np.count_nonzero(one > other) / len(wanted) for one, other in ((wanted, got), (got, wanted)))
        return lambda total: difference_of_shares(lost * total, gained * total, total)
    sign = 1 if metric.higher_is_better else -1
    return _bootstrap(lambda weights: sign * (metric.of(wanted, weights) - metric.of(got, weights)), len(wanted))


def interval_of_agreement(shares: Statistics) -> Interval:
    """Return the interval around the mean of shares, which is exact if each is 0 or 1."""
    return agreement_at(shares)(len(shares))


def agreement_at(shares: Statistics, together: NDArray[np.int64] | None = None, in_pairs: bool = False) -> At:
    """Return the interval around the mean of shares. Samples of one number in `together` depend on each other, so that
    they are drawn as one. Shares `in_pairs` are of the pairs of a sample with each other one."""
    numbers = np.arange(len(shares)) if together is None else together
    _, numbers, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    same, alone = float(shares.mean()), len(sizes) == len(shares)

    def drawn(total: int) -> int:
        return round(total * len(sizes) / len(shares))

    if same in (0, 1) or (alone and np.isin(shares, (0, 1)).all()):
        return lambda total: share(round(same * drawn(total)), drawn(total))
    # A sample that is drawn comes with its own pairs, and moves as much again in the shares of the others.
    sums = np.bincount(numbers, 2 * shares - same if in_pairs else shares)
    found = _bootstrap(lambda weights: (weights @ sums) / (weights @ sizes), len(sizes))
    return lambda total: Interval(low=max(0.0, found(drawn(total)).low), high=min(1.0, found(drawn(total)).high))


def share(count: int, total: int) -> Interval:
    """Return the exact interval of Clopper and Pearson around count / total."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if count == 0 else 1 - _where(lambda p: _at_most(total - count, total, p) - tail)
    high = 1.0 if count == total else _where(lambda p: _at_most(count, total, p) - tail)
    return Interval(low=low, high=high)


def _at_most(count: int, total: int, p: float) -> float:
    """Return the probability of at most `count` successes in `total` trials."""
    if p in (0.0, 1.0):
        return float(p == 0.0)
    numbers = np.arange(count + 1)
    ways = np.concatenate([[0.0], np.cumsum(np.log((total - numbers[:-1]) / numbers[1:]))])
    return float(np.exp(ways + numbers * math.log(p) + (total - numbers) * math.log1p(-p)).sum())


def difference_of_shares(lost: float, gained: float, total: int) -> Interval:
    """Return the score interval of Tango (1998) around (lost - gained) / total, where `lost` samples were right only
    before and `gained` only after."""

    def score(difference: float) -> float:
        """Return by how many standard errors the count differs from what `difference` lets expect."""
        b = (2 * total - lost + gained) * difference - lost - gained
        c = -gained * difference * (1 - difference)
        expected = (math.sqrt(max(0.0, b * b - 8 * total * c)) - b) / (4 * total)  # the likeliest share of gained ones
        variance = total * (2 * expected + difference * (1 - difference))
        return (lost - gained - total * difference) / math.sqrt(max(variance, 1e-300))

    observed = (lost - gained) / total
    low = _where(lambda at: score(at) - Z, -1.0, observed)
    high = _where(lambda at: score(at) + Z, observed, 1.0)
    return Interval(low=low, high=high)


def _where(falling: Callable[[float], float], low: float = 0.0, high: float = 1.0) -> float:
    """Return where a falling function crosses zero."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return (low + high) / 2


def _bootstrap(figure: Callable[[NDArray[np.float64]], NDArray[np.float64]], total: int) -> At:
    """Return the interval around the figure; it narrows with the root of the number of samples."""
    found, interval = float(figure(np.ones((1, total)))[0]), _bca(figure, total)

    def at(samples: int) -> Interval:
        times = math.sqrt(total / samples)
        return Interval(low=found + (interval.low - found) * times, high=found + (interval.high - found) * times)

    return at


def _bca(figure: Callable[[NDArray[np.float64]], NDArray[np.float64]], total: int) -> Interval:
    """Return the BCa interval of Efron (1987): quantiles of the figure over sets of samples drawn anew, moved for its
    bias and for how its spread changes with it."""
    drawn = np.sort(_draw(figure, total))
    found = float(figure(np.ones((1, total)))[0])
    below = (np.count_nonzero(drawn < found) + 0.5 * np.count_nonzero(drawn == found)) / len(drawn)
    if not 0 < below < 1 or drawn[0] == drawn[-1]:
        return Interval(low=min(found, float(drawn[0])), high=max(found, float(drawn[-1])))
    bias, bend = NormalDist().inv_cdf(below), _acceleration(figure, total)
    wider = Z * math.sqrt(total / max(1, total - 1))  # a drawn set varies less than a new one by this much
    shares = [NormalDist().cdf(bias + (bias + z) / max(1 - bend * (bias + z), 0.1)) for z in (-wider, wider)]
    low, high = np.quantile(drawn, shares).tolist()
    return Interval(low=low, high=high)


def _draw(figure: Callable[[NDArray[np.float64]], NDArray[np.float64]], total: int) -> NDArray[np.float64]:
    rng, at_once = np.random.default_rng(SEED), max(1, DRAWN_AT_ONCE // total)
    parts = [min(at_once, DRAWS - start) for start in range(0, DRAWS, at_once)]
    even = np.full(total, 1 / total)
    return np.concatenate([figure(rng.multinomial(total, even, size=count).astype(np.float64)) for count in parts])


def _acceleration(figure: Callable[[NDArray[np.float64]], NDArray[np.float64]], total: int) -> float:
    """Return the skewness of the figure when groups of samples are left out in turn, as BCa needs it."""
    count, at_once = min(total, GROUPS), max(1, DRAWN_AT_ONCE // total)
    groups = np.arange(total) % count
    if count < 3:
        return 0.0
    parts = [np.arange(start, min(start + at_once, count)) for start in range(0, count, at_once)]
    values = np.concatenate([figure((groups != part[:, np.newaxis]).astype(np.float64)) for part in parts])
    apart = values.mean() - values
    return float((apart**3).sum() / max(6 * (apart**2).sum() ** 1.5, 1e-300))
