import gc
import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from enginewright.core import progress
from enginewright.measure import timing
from enginewright.measure.records import WARM_UP_AGREEMENT
from enginewright.measure.timing import (
    FEWEST_ROUNDS,
    MOST_ROUNDS,
    Call,
    Round,
    Timings,
    best_common_pace,
    median_interval,
    race,
    take_turn,
    time_call,
    warm_up,
)


class Clock:
    """A clock that only contenders move, so that each measured time is known exactly."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        self.calls = []
        monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: self.now))

    def contender(self, name, seconds):
        """Make a call that takes `seconds`: a number, or a function of the time and the number of earlier calls."""

        def call():
            earlier = self.calls.count(name)
            self.calls.append(name)
            self.now += seconds(self.now, earlier) if callable(seconds) else seconds

        return call


def steady():
    """Read the pace of a machine that never changes."""
    return 1.0


def race_one(contenders, seconds, rng, pace=steady):
    (timings,) = race([contenders], seconds, pace, rng, "race")
    return timings


def turns_of(timings, contender):
    return [each.turns[contender] for each in timings.rounds]


def rounds(*paces):
    """Make rounds at these paces. The engine is twice as fast at a pace of 1, and five times at any other."""
    return Timings(
        [
            Round({"eager": [Call(2.0 if pace == 1 else 5.0, None)], "engine": [Call(1.0, None)]}, float(pace))
            for pace in paces
        ]
    )


def seconds_of(calls):
    return [call.seconds for call in calls]


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_every_contender_has_a_turn_in_every_round(clock, rng):
    contenders = {"slow": clock.contender("slow", 0.02), "fast": clock.contender("fast", 0.01)}
    timings = race_one(contenders, 1.0, rng)
    slow, fast = turns_of(timings, "slow"), turns_of(timings, "fast")
    assert len(slow) == len(fast) == MOST_ROUNDS
    assert all(slow)
    assert all(fast)
    assert seconds_of(timings.calls_of("slow")) == pytest.approx([0.02] * len(timings.calls_of("slow")))
    assert timings.ratios("slow", "fast") == pytest.approx([2] * MOST_ROUNDS)


def test_each_round_has_a_new_random_order(clock, rng):
    """In a fixed order, the second contender would always find the caches that the first left."""
    race_one({"a": clock.contender("a", 0.01), "b": clock.contender("b", 0.01)}, 1.0, rng)
    turns = clock.calls[clock.calls.index("b") :]
    changes = sum(one != following for one, following in pairwise(turns))
    assert MOST_ROUNDS < changes < 2 * MOST_ROUNDS - 1


@pytest.mark.parametrize(("one_call", "rounds"), [(0.001, MOST_ROUNDS), (0.05, 10), (10.0, FEWEST_ROUNDS)])
def test_slow_contenders_get_fewer_rounds_but_enough_for_an_interval(clock, rng, one_call, rounds):
    """The slowest one decides."""
    contenders = {"fast": clock.contender("fast", 0.001), "slow": clock.contender("slow", one_call)}
    assert len(race_one(contenders, 1.0, rng).rounds) == rounds


def test_calls_that_grow_far_slower_during_the_race_end_it(clock, rng):
    """PyTorch's recurrent layers are such calls on a machine that others keep busy."""
    timings = race_one({"a": clock.contender("a", lambda now, _: 0.001 if now < 0.2 else 2.0)}, 1.0, rng)
    assert len(timings.rounds) == FEWEST_ROUNDS


def test_a_contender_gets_about_the_asked_seconds(clock, rng):
    timings = race_one({"a": clock.contender("a", 0.001), "b": clock.contender("b", 0.004)}, 2.0, rng)
    for name in ("a", "b"):
        assert sum(seconds_of(timings.calls_of(name))) == pytest.approx(2.0, rel=0.1)


def test_a_drift_that_doubles_all_times_half_way_leaves_the_ratio_unchanged(clock, rng):
    def drifting(seconds):
        return lambda now, _: seconds * (2 if now > 3.0 else 1)

    timings = race_one(
        {"slow": clock.contender("slow", drifting(0.03)), "fast": clock.contender("fast", drifting(0.01))}, 2.0, rng
    )
    ratios = timings.ratios("slow", "fast")
    fast = seconds_of(timings.calls_of("fast"))
    assert max(fast) == pytest.approx(2 * min(fast))  # it did drift
    assert np.median(ratios) == pytest.approx(3)
    assert np.count_nonzero(np.abs(ratios - 3) > 1e-6) <= 1  # the round in which it happened


def test_points_take_rounds_in_turns(clock, rng):
    """Else one batch size would be timed before a change of the machine, and another one after it."""
    names = ("small", "large")
    race([{name: clock.contender(name, 0.01)} for name in names], 1.0, steady, rng, "race")
    warmed_up = clock.calls[22:]
    firsts = [one for one, following in pairwise(warmed_up) if one != following]
    assert firsts == list(names) * (MOST_ROUNDS - 1) + ["small"]


def test_rounds_on_a_slower_machine_are_replaced_by_others(clock, rng):
    """The machine takes half as long again between 2 and 4 seconds. As many rounds as that spoils are added."""

    def pace():
        return 1.5 if 2 < clock.now < 4 else 1.0

    timings = race_one({"a": clock.contender("a", 0.02)}, 4.0, rng, pace)
    assert len(timings.at_pace(1.0).rounds) == MOST_ROUNDS
    assert MOST_ROUNDS + 8 <= len(timings.rounds) <= MOST_ROUNDS + 12


def test_progress_never_exceeds_the_total_though_rounds_are_added(clock, rng, monkeypatch, capsys):
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", -1)  # a line for each round
    timings = race_one({"a": clock.contender("a", 0.02)}, 4.0, rng, lambda: 1.5 if 2 < clock.now < 4 else 1.0)
    lines = re.findall(r"(?m)^race: (\d+) of (\d+) rounds, ", capsys.readouterr().out)
    counts, totals = ([int(number) for number in column] for column in zip(*lines, strict=True))
    assert counts == list(range(1, len(timings.rounds) + 1))
    assert (totals[0], totals[-1]) == (MOST_ROUNDS, len(timings.rounds))
    assert totals == sorted(totals)
    assert all(count < total for count, total in zip(counts[:-1], totals[:-1], strict=True))


def test_a_machine_that_stays_slow_takes_at_most_twice_the_time(clock, rng):
    timings = race_one({"a": clock.contender("a", 0.02)}, 4.0, rng, lambda: 1.0 if clock.now < 1 else 1.5)
    assert len(timings.rounds) == 2 * MOST_ROUNDS


def test_the_pace_of_a_round_is_the_slower_one_of_its_start_and_end(clock, rng):
    readings = iter([1.0, 1.4])
    assert timing.take_round({"a": clock.contender("a", 0.1)}, 0.1, lambda: next(readings), rng).pace == 1.4


def test_the_best_pace_with_enough_rounds_at_every_point_counts():
    both = [rounds(1, 1, 1, 1, 1, 1, 1.5), rounds(1.1, 1.1, 1.1, 1, 1, 1, 1.5, 1.5)]
    assert best_common_pace(both) == 1
    assert [len(each.at_pace(1).rounds) for each in both] == [6, 6]
    assert both[0].at_pace(1).ratios("eager", "engine").tolist() == [2] * 6


def test_a_pace_with_too_few_rounds_does_not_count():
    assert best_common_pace([rounds(1, 1, *[1.5] * 10)]) == 1.5


def test_a_pace_that_one_point_never_saw_is_not_common():
    assert best_common_pace([rounds(*[1] * 6), rounds(*[1.5] * 6)]) is None


def test_a_machine_that_never_keeps_to_a_pace_has_no_common_pace():
    assert best_common_pace([rounds(*(1.2**step for step in range(20)))]) is None


def test_ratios_are_formed_within_rounds():
    def calls(*seconds):
        return [Call(each, compute=None) for each in seconds]

    timings = Timings(
        [
            Round({"slow": calls(2, 2, 9), "fast": calls(1, 1)}, 1.0),
            Round({"slow": calls(8, 8), "fast": calls(4, 4, 0.1)}, 1.0),
        ]
    )
    assert timings.ratios("slow", "fast").tolist() == [2, 2]
    assert seconds_of(timings.calls_of("slow")) == [2, 2, 9, 8, 8]


@pytest.mark.parametrize(("returned", "compute"), [(0.25, 0.25), (None, None), ({"logits": 1}, None)])
def test_a_call_is_timed_by_the_host_and_by_the_device_if_it_can(clock, returned, compute):
    timed = clock.contender("a", 0.75)
    assert time_call(lambda: (timed(), returned)[1]) == Call(seconds=0.75, compute=compute)


def test_garbage_collection_is_off_in_a_race_and_on_after_it(clock, rng):
    seen = []
    race_one({"a": lambda: (seen.append(gc.isenabled()), clock.contender("a", 0.1)())}, 1.0, rng)
    assert seen[-1] is False
    assert gc.isenabled()


def test_garbage_collection_is_on_again_after_an_error(clock, rng):
    def fail():
        if not gc.isenabled():
            raise RuntimeError("out of memory")
        clock.now += 0.1

    with pytest.raises(RuntimeError):
        race_one({"a": fail}, 1.0, rng)
    assert gc.isenabled()


@pytest.mark.parametrize(("turn", "counted"), [(12.05, 71), (5.05, 26), (3.05, 16)], ids=["part", "most", "all of it"])
def test_a_turn_does_not_count_its_first_call_and_counts_others_for_half_its_time(clock, turn, counted):
    cold_once = clock.contender("a", lambda _, earlier: 5.0 if earlier == 0 else 0.1)
    assert seconds_of(take_turn(cold_once, turn)) == pytest.approx([0.1] * counted)


def test_a_turn_counts_at_least_one_call(clock):
    assert take_turn(clock.contender("a", 3.0), 0.0) == [Call(3.0, compute=None)]


def test_warm_up_lasts_until_two_windows_agree(clock):
    warming = clock.contender("a", lambda _, earlier: 1.0 if earlier < 5 else 0.5)
    assert warm_up(warming, 100.0) == (pytest.approx(0.5), 0.0)
    assert len(clock.calls) == 16  # one that may compile, then windows of 1.0, 0.5 and 0.5


def test_warm_up_ends_when_its_time_is_over(clock):
    unsteady = clock.contender("a", lambda _, earlier: 1.0 + earlier)
    assert warm_up(unsteady, 30.0) == (7.5, pytest.approx(3.5 / 7.5))
    assert len(clock.calls) == 8  # one that may compile, a window of 2 + ... + 6, and one of 7 + 8


def test_a_race_records_how_each_warm_up_ended(clock, rng):
    unsteady = clock.contender("b", lambda _, earlier: 1.0 + earlier if earlier < 8 else 7.0)
    timings = race_one({"a": clock.contender("a", 0.5), "b": unsteady}, 60.0, rng)
    assert timings.warm_ups["a"] == (0.5, 0.0)
    assert timings.at_pace(1.0).warm_ups["b"].drift > WARM_UP_AGREEMENT


def test_a_slow_contender_has_two_windows_of_one_call(clock):
    warm_up(clock.contender("a", lambda _, earlier: 20.0 if earlier < 2 else 18.0), 30.0)
    assert len(clock.calls) == 3


def test_a_first_call_that_compiles_is_in_no_window(clock):
    compiled = clock.contender("a", lambda _, earlier: 0.004 if earlier else 300.0)
    assert warm_up(compiled, 1.0) == (pytest.approx(0.004), 0.0)


@pytest.mark.parametrize(
    ("values", "confidence", "interval"),
    [
        ([4, 4, 4, 4, 4, 4], 0.95, (4, 4)),
        # Medians of resamples of two: 1 in a quarter of them, 2 in half, 3 in a quarter.
        ([1, 3], 0.95, (1, 3)),
        ([1, 3], 0.4, (2, 2)),
        # Of three: the lowest in 7 of 27, the middle one in 13, the highest in 7.
        ([0, 1, 10], 0.4, (1, 1)),
        ([0, 1, 10], 0.55, (0, 10)),
    ],
)
def test_the_interval_of_a_median_is_the_one_computed_by_hand(values, confidence, interval):
    rng = np.random.default_rng(0)
    assert median_interval(np.array(values, float), confidence, rng) == interval


@pytest.mark.parametrize("rounds", [FEWEST_ROUNDS, 12, MOST_ROUNDS])
def test_the_interval_covers_the_true_median_about_as_often_as_its_confidence_says(rounds):
    rng = np.random.default_rng(rounds)
    experiments = 300
    covered = 0
    for _ in range(experiments):
        low, high = median_interval(rng.lognormal(0, 0.1, rounds), 0.95, rng)
        covered += low <= 1 <= high
    assert 0.90 <= covered / experiments <= 0.985


def test_a_higher_confidence_widens_the_interval():
    values = np.random.default_rng(1).normal(3, 1, 20)
    narrow = median_interval(values, 0.8, np.random.default_rng(0))
    wide = median_interval(values, 0.99, np.random.default_rng(0))
    assert wide[0] < narrow[0] <= np.median(values) <= narrow[1] < wide[1]


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(1).normal(3, 1, 20)
    one, other = (median_interval(values, 0.95, np.random.default_rng(5)) for _ in range(2))
    assert one == other
