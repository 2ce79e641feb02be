"""The intervals against published and independent ones. How often they hold: benchmarks/measuring/intervals.py."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.stats import binomtest, bootstrap, kurtosis, sem, t

from enginewright.measure import intervals
from enginewright.measure.intervals import (
    Estimate,
    agreement_at,
    difference_of_shares,
    drop_at,
    estimate,
    share,
)
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Metric, mean

MEAN = Metric("mean", mean)
RNG = np.random.default_rng(0)


def interval_of_drop(metric, wanted, got):
    return drop_at(metric, wanted, got)(len(wanted))


def interval_of_agreement(shares):
    return agreement_at(shares)(len(shares))


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


@pytest.mark.parametrize("at_once", [1, 18, 10_000])
def test_tails_of_a_mean_are_those_of_its_samples(monkeypatch, at_once):
    monkeypatch.setattr(intervals, "DRAWN_AT_ONCE", at_once)  # weights: a figure, 3, all
    values = np.array([9.0, 0, 1, 2, 1, 0])
    found = estimate(lambda weights: (weights @ values) / weights.sum(axis=1), 6)
    assert found.tails == pytest.approx(kurtosis(values))
    drawn = np.random.default_rng(intervals.SEED).multinomial(6, np.full(6, 1 / 6), intervals.DRAWS) @ values / 6
    assert [found.low, found.high] == pytest.approx(np.quantile(drawn, (0.025, 0.975)).tolist())


def test_tails_of_groups_are_told_as_those_of_samples():
    values = RNG.laplace(size=20_000)
    found = estimate(lambda weights: (weights @ values) / weights.sum(axis=1), len(values))
    interval = found.at(len(values))
    assert interval.high - interval.low == pytest.approx(2 * 1.96 * sem(values), rel=0.05)


@pytest.mark.parametrize(("tails", "freedom"), [(0, 63), (30, 3.99), (59, 2.1)])
def test_the_fewer_samples_an_error_is_due_to_the_wider_is_the_interval(tails, freedom):
    """Check it for the excess kurtosis of 64 samples: about 28 if two differ from all others, and 59 if one does."""
    found = Estimate(0.5, 64, 0.4, 0.8, tails).at(64)
    times = t.ppf(0.975, freedom) / t.ppf(0.975, np.inf) * np.sqrt(64 / 63)
    assert (found.low, found.high) == (
        pytest.approx(0.5 - 0.1 * times, rel=2e-3),
        pytest.approx(0.5 + 0.3 * times, rel=2e-3),
    )


def shares_of_pixels(rng):
    return interval_of_agreement(rng.beta(9.7, 0.3, 64)), 0.97


def drop_of_a_mean(rng):
    """Most questions are answered alike, and few far better or worse, as with nDCG: BCa held 86 %."""
    return interval_of_drop(MEAN, rng.standard_t(4, 64) * (rng.random(64) < 0.2), np.zeros(64)), 0


@pytest.mark.parametrize("interval_of", [shares_of_pixels, drop_of_a_mean])
def test_95_percent_of_the_intervals_hold_the_truth_where_few_samples_matter_most(interval_of):
    rng = np.random.default_rng(3)
    found = [interval_of(rng) for _ in range(400)]
    assert np.mean([one.low <= truth <= one.high for one, truth in found]) > 0.94


def test_shares_are_never_less_sure_than_wholes_of_the_same_mean():
    found, whole = interval_of_agreement(np.array([1.0] * 63 + [0.3])), binomtest(63, 64).proportion_ci(0.95, "wilson")
    assert whole.low < found.low < 63 / 64 < found.high < 1


def test_what_no_sample_shows_may_be_lost_as_often_as_answers_are():
    ranks = np.full(512, 0.6)
    found, of_answers = interval_of_drop(MEAN, ranks, ranks), difference_of_shares(0, 0, 512)
    assert (found.low, found.high) == pytest.approx((0.6 * of_answers.low, 0.6 * of_answers.high))
    assert found.high == pytest.approx(0.6 * 1.96**2 / (512 + 1.96**2), rel=1e-4)


def test_a_figure_that_moves_in_steps_may_have_lost_as_many_even_where_a_sample_shows_some():
    ranks = np.full(64, 0.6)
    moved = np.append(ranks[1:], 0.59)
    plain, stepped = (interval_of_drop(replace(MEAN, in_steps=steps), ranks, moved) for steps in (False, True))
    unseen = 0.6 * difference_of_shares(0, 0, 64).high
    assert plain.high < stepped.high == pytest.approx((ranks - moved).mean() + unseen)


def test_outputs_that_are_the_same_have_an_interval_of_nothing():
    rmse, same = task_of("regression").metrics[1], RNG.random(20)
    assert interval_of_drop(rmse, same, same).model_dump() == {"low": 0, "high": 0}
    assert interval_of_agreement(np.full(9, 0.5)).model_dump() == {"low": 0.5, "high": 0.5}
    assert interval_of_agreement(np.ones(8)) == share(8, 8)
    nearly = interval_of_agreement(np.array([1.0] * 6 + [0.5]))
    assert 0.5 < nearly.low < nearly.high < 1
    assert interval_of_drop(rmse, same[:1], same[:1] + 1).low > 0  # one sample draws nothing but itself
