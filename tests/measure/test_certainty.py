"""Whether samples are enough to be sure of a threshold, and how many would be."""

import numpy as np
import pytest
from support.results import accuracy, agreed

from enginewright.core.params.precisions import Thresholds
from enginewright.measure.agreement import MOST_SAMPLES
from enginewright.measure.intervals import (
    agreement_at,
    difference_of_shares,
    drop_at,
    samples_needed,
    share,
    unsure_thresholds,
)
from enginewright.measure.records import Interval
from enginewright.tasks.choose import task_of

LIMITS = Thresholds(cosine=0, relative_error=1, agreement=0.995, metric_drop=0.005)
ACCURACY, RMSE = task_of("classification").metrics[0], task_of("regression").metrics[1]


def rights(right, wrong):
    return np.repeat([1.0, 0.0], [right, wrong])


@pytest.mark.parametrize(
    ("wanted", "got", "limit", "needed"),
    [
        (rights(512, 0), rights(512, 0), 0.01, 512),  # surely not above: the interval ends at 0.0074
        (rights(512, 0), rights(512, 0), 0.005, 765),  # 3.84 / 0.005, less 3.84
        (rights(512, 0), rights(512, 0), 0.002, 1917),
        (rights(512, 0), rights(502, 10), 0.005, 512),  # surely above
        (rights(512, 0), rights(509, 3), 0.005, None),  # 3 of 512 is 0.00586: 23,000 would tell
        (rights(512, 0), rights(512, 0), 0.0, None),
    ],
)
def test_how_many_samples_would_tell_about_an_accuracy(wanted, got, limit, needed):
    found = samples_needed(drop_at(ACCURACY, wanted, got), limit, 512)
    if needed is not None or limit == 0:
        assert found == needed
    else:
        assert 10_000 < found < 40_000


def test_the_number_that_is_given_tells_and_one_sample_less_does_not():
    at = drop_at(ACCURACY, rights(500, 12), rights(499, 13))
    needed = samples_needed(at, 0.01, 512)
    assert (at(needed).high <= 0.01, at(needed - 1).high <= 0.01) == (True, False)


def test_a_drawn_interval_narrows_with_the_root_of_the_number():
    rng = np.random.default_rng(1)
    wanted = rng.gamma(2, 1, 400)
    at = drop_at(RMSE, wanted, wanted * 1.1)
    middle = np.sqrt((wanted * 1.1).mean()) - np.sqrt(wanted.mean())
    half = pytest.approx((at(400).high - middle) / 2, rel=0.02)  # less than half: the spread is known better, too
    assert at(1600).high - middle == half
    more = np.tile(wanted, 4)
    real = drop_at(RMSE, more, more * 1.1)(1600)
    assert (at(1600).low, at(1600).high) == (pytest.approx(real.low, abs=2e-4), pytest.approx(real.high, abs=2e-4))


def test_the_intervals_of_more_samples_are_those_of_these_shares():
    assert agreement_at(rights(99, 1))(1000) == share(990, 1000)
    assert drop_at(ACCURACY, rights(100, 0), rights(98, 2))(1000) == difference_of_shares(20, 0, 1000)


def test_answers_to_one_question_are_drawn_together_and_pairs_count_for_both():
    shares = np.random.default_rng(1).beta(9, 1, 40)
    one, same = agreement_at(shares)(40), shares.mean()
    five_times = agreement_at(np.repeat(shares, 5), np.repeat(np.arange(40), 5))(200)
    assert (five_times.low, five_times.high) == (pytest.approx(one.low), pytest.approx(one.high))
    assert agreement_at(np.ones(200), np.repeat(np.arange(40), 5))(200) == share(40, 40)
    paired = agreement_at(shares, in_pairs=True)(40)
    ends = np.array([[one.low, one.high], [paired.low, paired.high]])
    away = np.log(ends / (1 - ends)) - np.log(same / (1 - same))
    assert away[1] == pytest.approx(2 * away[0])


def test_a_drop_that_may_be_the_limit_itself_is_not_above_it():
    assert samples_needed(lambda total: Interval(low=0.01, high=0.02), 0.01, MOST_SAMPLES // 2) is None


def test_a_figure_that_is_no_number_is_never_sure():
    assert samples_needed(lambda total: Interval(low=float("nan"), high=float("nan")), 0.01, MOST_SAMPLES // 2) is None


def test_each_threshold_that_is_not_sure_has_a_sentence():
    (drop,) = accuracy(0.98, 0.98, 0.979)["results"]
    assert unsure_thresholds(agreed(1.0), drop, LIMITS) == ()
    few = {"needed": 23_456}
    assert unsure_thresholds(agreed(1.0).model_copy(update=few), drop.model_copy(update=few), LIMITS) == (
        "top-1 agreement 100.00% (99.00% to 100.00%) may be below 99.50%: about 24,000 samples would tell",
        "accuracy drop 0.10% (-0.90% to 1.10%) may be above 0.50%: about 24,000 samples would tell",
    )
    (drop,) = accuracy(0.98, 0.98, 0.97)["results"]
    of_broken = unsure_thresholds(agreed(0.98).model_copy(update=few), drop.model_copy(update=few), LIMITS)
    assert [sentence.partition(") ")[2].partition(":")[0] for sentence in of_broken] == [
        "may be 99.50% or more",
        "may be 0.50% or less",
    ]
    (sentence,) = unsure_thresholds(agreed(1.0).model_copy(update={"needed": None}), None, LIMITS)
    assert sentence.endswith("it is so close to the limit that no number of samples would tell")
