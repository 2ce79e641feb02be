"""Intervals around figures of one sample set. PyTorch and the engine see the same samples, so what is drawn anew are
samples with both results: then a drop has a far narrower interval than two metrics that are compared as strangers."""

import math
from bisect import bisect_left
from collections.abc import Callable, Sized
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.core.params.precisions import Thresholds
from enginewright.data.feeds import middle_of
from enginewright.measure.records import Agreement, Interval, Result
from enginewright.tasks.task import Metric, Statistics

CONFIDENCE = 0.95
Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
DRAWS = 1000
DRAWN_AT_ONCE = 2**22  # weights in memory
SEED = 0
GROUPS = 100  # of samples, left out in turn
MOST_SAMPLES = 10**8

Figure = Callable[[NDArray[np.float64]], NDArray[np.float64]]  # of each of several sets, by how often each has a sample
At = Callable[[int], Interval]  # the interval, had so many samples answered as those did that were seen


def drop_at(metric: Metric, expected: Sized, got: Sized) -> At:
    if metric.is_share and isinstance(expected, np.ndarray) and isinstance(got, np.ndarray):
        lost, gained = float(np.mean(expected > got)), float(np.mean(got > expected))
        return lambda total: difference_of_shares(lost * total, gained * total, total)
    sign, worth = (1, abs(metric.over(expected))) if metric.higher_is_better else (-1, 0.0)
    found = estimate(lambda weights: sign * (metric.of(expected, weights) - metric.of(got, weights)), len(expected))
    if found.low < found.high and not metric.in_steps:
        return found.at

    def with_unseen(total: int) -> Interval:
        """Return the interval that also holds what may be lost unseen: as many as where no answer of a share is."""
        seen, none = found.at(total), difference_of_shares(0, 0, total)
        low, high = (found.value + worth * end for end in (none.low, none.high))
        return Interval(low=min(seen.low, low), high=max(seen.high, high))

    return with_unseen


def agreement_at(shares: Statistics, together: NDArray[np.int64] | None = None, in_pairs: bool = False) -> At:
    """Return the interval around the mean of shares. Samples of one number in `together` depend on each other, so that
    they are drawn as one. Shares `in_pairs` are of the pairs of a sample with each other one."""
    numbers = np.arange(len(shares)) if together is None else together
    _, numbers, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    same, alone = float(shares.mean()), len(sizes) == len(shares)

    def drawn(total: int) -> int:
        return round(total * len(sizes) / len(shares))

    def independent(total: int) -> int:
        return max(1, drawn(total) // (2 if in_pairs else 1))

    if same in (0, 1) or (alone and np.isin(shares, (0, 1)).all()):
        return lambda total: share(round(same * independent(total)), independent(total))
    # A sample that is drawn comes with its own pairs, and moves as much again in the shares of the others.
    sums = np.bincount(numbers, 2 * shares - same if in_pairs else shares)
    found = estimate(lambda weights: (weights @ sums) / (weights @ sizes), len(sizes))
    return lambda total: _of_share(same, found.at(drawn(total)), independent(total))


def _of_share(same: float, found: Interval, total: int) -> Interval:
    """Return an interval as wide as the one found, on the scale of log odds, as a mean near 0 or 1 is skewed. It lies
    within the score interval of Wilson (1927): no shares vary more than those that are 0 or 1."""
    odds, around = math.log(same / (1 - same)), (found.high - found.low) / (2 * same * (1 - same))
    low, high = ((1 + math.tanh((odds + end) / 2)) / 2 for end in (-around, around))
    extra = Z**2 / total
    middle = (same + extra / 2) / (1 + extra)
    most = math.sqrt(same * (1 - same) * extra + extra**2 / 4) / (1 + extra)
    return Interval(low=max(low, middle - most), high=min(high, middle + most))


def share(count: int, total: int) -> Interval:
    """Return the exact interval of Clopper and Pearson around count / total."""
    from scipy.special import betaincinv  # here: it takes half a second, and what runs engines alone lacks it

    low = 0.0 if count == 0 else betaincinv(count, total - count + 1, (1 - CONFIDENCE) / 2)
    high = 1.0 if count == total else betaincinv(count + 1, total - count, (1 + CONFIDENCE) / 2)
    return Interval(low=float(low), high=float(high))


def difference_of_shares(lost: float, gained: float, total: int) -> Interval:
    """Return the score interval of Tango (1998) around (lost - gained) / total, where `lost` samples were right only
    before and `gained` only after."""
    from scipy.optimize import brentq  # here, as in `share`

    def score(difference: float) -> float:
        """Return by how many standard errors the count differs from what `difference` lets expect."""
        b = (2 * total - lost + gained) * difference - lost - gained
        c = -gained * difference * (1 - difference)
        gaining = (math.sqrt(max(0.0, b * b - 8 * total * c)) - b) / (4 * total)  # the likeliest share of gained ones
        variance = total * (2 * gaining + difference * (1 - difference))
        return (lost - gained - total * difference) / math.sqrt(max(variance, 1e-300))

    observed = (lost - gained) / total

    def end(errors: float, limit: float) -> float:
        return observed if observed == limit else brentq(lambda each: score(each) - errors, observed, limit)

    return Interval(low=end(Z, -1.0), high=end(-Z, 1.0))


class Estimate(NamedTuple):
    """A figure of samples, and how well it is known."""

    value: float
    samples: int
    low: float  # between these lie 95 % of the figures of sets that are drawn anew
    high: float
    tails: float  # excess kurtosis of how the figure moves without each sample: large if it rests on few of them

    def at(self, samples: int) -> Interval:
        """Return the interval, had so many samples answered as those did that were seen."""
        from scipy.special import stdtrit

        if self.low == self.high:
            return Interval(low=self.value, high=self.value)
        # The fewer samples a spread is due to, the less it is known: the degrees of freedom of Satterthwaite (1946).
        freedom = 1 / (1 / (samples - 1) + self.tails / (2 * samples))
        # A drawn set varies less than a new one by the root of the samples over one less.
        times = (
            float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) / Z * self.samples / math.sqrt((self.samples - 1) * samples)
        )
        low, high = (self.value + (end - self.value) * times for end in (self.low, self.high))
        return Interval(low=low, high=high)


def estimate(figure: Figure, total: int) -> Estimate:
    value = float(figure(np.ones((1, total)))[0])
    if total == 1:  # which draws nothing but itself
        return Estimate(value, total, value, value, 0.0)
    rng, even, count = np.random.default_rng(SEED), np.full(total, 1 / total), min(total, GROUPS)
    drawn = _in_parts(lambda part: figure(rng.multinomial(total, even, len(part)).astype(np.float64)), DRAWS, total)
    low, high = middle_of(drawn, CONFIDENCE)
    groups = np.arange(total) % count
    without = _in_parts(lambda part: figure((groups != part[:, np.newaxis]).astype(np.float64)), count, total)
    apart = without - without.mean()
    excess = (apart**4).mean() / max((apart**2).mean() ** 2, 1e-300) - 3
    return Estimate(value, total, low, high, max(0.0, float(excess)) * total / count)  # sums have less than their parts


def _in_parts(figures: Callable[[NDArray[np.int64]], Statistics], count: int, total: int) -> Statistics:
    """Return figures of so many sets of `total` samples. Only some sets at a time are in memory."""
    at_once = max(1, DRAWN_AT_ONCE // total)
    parts = [np.arange(start, min(start + at_once, count)) for start in range(0, count, at_once)]
    return np.concatenate([figures(part) for part in parts])


def samples_needed(drop_at: At, limit: float, samples: int) -> int | None:
    """Return how many samples would tell whether a drop is above its limit: those there are if they do, and none if no
    number would, as the drop is the limit."""

    def tells(total: int) -> bool:
        drop = drop_at(total)
        return drop.high <= limit or drop.low > limit

    if tells(samples):
        return samples
    enough = bisect_left(range(MOST_SAMPLES), True, lo=samples, key=tells)
    return enough if enough < MOST_SAMPLES else None


def unsure_thresholds(agreement: Agreement | None, result: Result | None, limits: Thresholds) -> tuple[str, ...]:
    """Return a sentence for each threshold that the samples are too few to be sure of: it may be broken, or kept."""
    unsure = []
    if agreement and not agreement.is_sure:
        figure, limit = f"{agreement.name} {agreement.share_with_interval}", f"{limits.agreement:.2%}"
        other = f"{limit} or more" if agreement.share < limits.agreement else f"below {limit}"
        unsure.append(f"{figure} may be {other}: {_how_many(agreement)}")
    if result and not result.is_sure:
        figure, limit = f"{result.name} drop {result.drop_with_interval}", result.written(limits.metric_drop)
        other = f"{limit} or less" if result.drop > limits.metric_drop else f"above {limit}"
        unsure.append(f"{figure} may be {other}: {_how_many(result)}")
    return tuple(unsure)


def _how_many(figure: Agreement | Result) -> str:
    if figure.needed is None:
        return "it is so close to the limit that no number of samples would tell"
    unit = 10 ** max(0, len(str(figure.needed)) - 2)  # two digits: it holds for samples answered as these were
    return f"about {-(-figure.needed // unit) * unit:,} samples would tell"
