"""The intervals against published and independent ones. How often they hold the truth: benchmarks/intervals.py."""

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, bootstrap

from enginery.accuracy import intervals
from enginery.accuracy.intervals import (
    _acceleration,
    difference_of_shares,
    interval_of_agreement,
    interval_of_drop,
    share,
)
from enginery.tasks.choose import task_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(("count", "total"), [(0, 8), (8, 8), (507, 512), (1, 20), (30_000, 50_000)])
def test_a_share_has_the_exact_interval_of_clopper_and_pearson(count, total):
    wanted, found = binomtest(count, total).proportion_ci(0.95, "exact"), share(count, total)
    assert (found.low, found.high) == (pytest.approx(wanted.low, abs=1e-9), pytest.approx(wanted.high, abs=1e-9))


@pytest.mark.parametrize(("lost", "gained", "total"), [(0, 0, 512), (12, 2, 50), (5, 0, 512), (1, 3, 64)])
def test_a_difference_of_paired_shares_ends_where_the_score_test_of_tango_does(lost, gained, total):
    """At either end the difference is 1.96 standard errors away, of the likeliest shares that have this difference."""
    found = difference_of_shares(lost, gained, total)
    for end, away in ((found.low, 1.95996), (found.high, -1.95996)):

        def unlikely(share, end=end):
            rest = total - lost - gained
            return -sum(
                n * np.log(p) for n, p in ((lost, share + end), (gained, share), (rest, 1 - 2 * share - end)) if n
            )

        least, most = max(0.0, -end) + 1e-12, (1 - end) / 2 - 1e-12
        share = minimize_scalar(unlikely, bounds=(least, most), method="bounded", options={"xatol": 1e-12}).x
        error = np.sqrt(total * (2 * share + end - end**2))
        assert (lost - gained - total * end) / error == pytest.approx(away, abs=2e-3)
    mirrored = difference_of_shares(gained, lost, total)
    assert (mirrored.low, mirrored.high) == (pytest.approx(-found.high), pytest.approx(-found.low))


def test_a_paired_interval_is_narrower_than_those_of_strangers_and_lies_where_scipys_does():
    rmse = task_of("regression").metrics[1]
    wanted = RNG.gamma(2, 1, 300)
    got = wanted * RNG.normal(1.02, 0.05, 300)
    found = interval_of_drop(rmse, wanted, got)
    theirs = bootstrap(
        (wanted, got), lambda a, b, axis: np.sqrt(b.mean(axis)) - np.sqrt(a.mean(axis)), paired=True, rng=1
    ).confidence_interval
    assert (found.low, found.high) == (pytest.approx(theirs.low, abs=1e-3), pytest.approx(theirs.high, abs=1e-3))
    assert found.low < np.sqrt(got.mean()) - np.sqrt(wanted.mean()) < found.high
    strangers = interval_of_drop(rmse, wanted, RNG.permutation(got))
    assert strangers.high - strangers.low > 5 * (found.high - found.low)
    assert interval_of_drop(rmse, wanted, got) == found, "the same samples give the same interval"


def test_a_figure_of_which_many_draws_are_equal_is_not_moved():
    found = interval_of_agreement(np.repeat([0.0, 0.5, 1.0], [5, 10, 5]))
    assert found.low + found.high == pytest.approx(1, abs=0.03)
    assert 0.2 < found.low < 0.4


@pytest.mark.parametrize("at_once", [1, 12, 1000])
def test_the_skewness_is_of_the_figures_without_each_sample_in_turn(monkeypatch, at_once):
    monkeypatch.setattr(intervals, "DRAWN_AT_ONCE", at_once)  # weights: a figure, 3, all
    values = np.array([9.0, 0, 1, 2])
    without = np.array([np.delete(values, place).mean() for place in range(4)])
    apart = without.mean() - without
    found = _acceleration(lambda weights: (weights @ values) / weights.sum(axis=1), 4)
    assert found == pytest.approx((apart**3).sum() / (6 * (apart**2).sum() ** 1.5))


@pytest.mark.parametrize("count", [25, 100])
def test_a_skewed_figure_has_the_interval_that_scipy_corrects_for_bias_and_skewness(count):
    """Few samples, a few of which are far worse: without the corrections both ends lie elsewhere."""
    rmse = task_of("regression").metrics[1]
    rng = np.random.default_rng(1)
    wanted = rng.lognormal(0, 0.2, count)
    got = wanted + rng.lognormal(-1, 2.5, count)
    found = interval_of_drop(rmse, wanted, got)
    plain, theirs = (
        bootstrap(
            (wanted, got), lambda a, b, axis: np.sqrt(b.mean(axis)) - np.sqrt(a.mean(axis)), paired=True, rng=1,
            method=method,
        ).confidence_interval
        for method in ("percentile", "BCa")
    )  # fmt: skip
    size = theirs.high - theirs.low
    assert abs(found.low - theirs.low) + abs(found.high - theirs.high) < 0.08 * size
    assert abs(plain.low - theirs.low) + abs(plain.high - theirs.high) > 0.15 * size


def test_outputs_that_are_the_same_have_an_interval_of_nothing():
    rmse, same = task_of("regression").metrics[1], RNG.random(20)
    assert interval_of_drop(rmse, same, same).model_dump() == {"low": 0, "high": 0}
    assert interval_of_agreement(np.full(9, 0.5)).model_dump() == {"low": 0.5, "high": 0.5}
    assert interval_of_agreement(np.ones(8)) == share(8, 8)
    nearly = interval_of_agreement(np.array([1.0] * 6 + [0.5]))
    assert (0.5 < nearly.low < nearly.high, nearly.high) == (True, 1.0)
    assert interval_of_drop(rmse, same[:1], same[:1] + 1).low > 0  # one sample draws nothing but itself
