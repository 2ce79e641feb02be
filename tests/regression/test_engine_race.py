"""Races of two engines. What they tell on a real machine, benchmarks/alarm.py measures."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from enginery.core.errors import EngineryError
from enginery.core.params.all import Params
from enginery.engine.build import build_engine
from enginery.engine.target import target_of
from enginery.regression import engine_race as duel_module
from enginery.regression.comparison import TOGETHER, Outcome, compare_runs, conclusion, deviations_of, judge_race
from enginery.regression.engine_race import FEWEST_LAPS, MOST_LAPS, PLACEMENT, race_engines, race_sides
from enginery.regression.speed_change import SpeedChange, together
from enginery.speed.timing import Call, Round, Timings


@pytest.fixture
def params():
    return Params.read().benchmark.model_copy(update={"batches": (2, 8), "seconds": 0.2})


@pytest.fixture
def whole(params, inference):
    """All parameters, with those of the race."""
    return Params.read().model_copy(update={"benchmark": params, "inference": inference})


@pytest.fixture
def races(monkeypatch):
    """In a race's place: what each side takes, less for each that was opened before it, and how much rounds scatter.

    Keeps the seconds that each lap was given.
    """
    laps = []

    def make(before, after, later_is_faster=0.0, noise=0.0):
        rng = np.random.default_rng(2)
        del laps[:]

        def race(points, seconds, *_):
            laps.append(seconds)
            return [Timings([one_round(point) for _ in range(20)]) for point in points]

        def one_round(point):
            taken = [before if name.startswith("before") else after for name in point] - later_is_faster * np.arange(4)
            return Round(
                {
                    name: [Call(seconds, None)] * 3
                    for name, seconds in zip(point, taken * np.exp(rng.normal(0, noise, 4)), strict=True)
                },
                pace=0.0,
            )

        monkeypatch.setattr(duel_module, "race", race)
        return laps

    return make


def raced(samples, params):
    side = nullcontext(lambda feeds: lambda: None)
    return race_sides({"before": lambda: side, "after": lambda: side}, samples, params, "a race")


def judged(shifts):
    return judge_race("int8", shifts, deviations_of(0.99, len(shifts) + 2))


def test_what_takes_longer_is_slower_by_as_much(races, samples, params):
    races(2.0, 2.2, noise=0.01)
    everything, *batches = judged(raced(samples, params))
    assert everything.figure == TOGETHER
    assert everything.outcome == Outcome.REGRESSION
    assert everything.change == pytest.approx(-0.09, abs=0.01)
    assert [change.figure for change in batches] == ["side by side, batch 2", "side by side, batch 8"]
    assert (batches[0].before, batches[0].after) == (pytest.approx(2000, rel=0.01), pytest.approx(2200, rel=0.01))


def test_an_advantage_of_the_later_places_is_neither_sides(races, samples, params):
    races(2.0, 2.0, later_is_faster=0.1)
    assert judged(raced(samples, params))[0].change == pytest.approx(0, abs=1e-6)


def test_laps_are_added_until_chance_is_small(races, samples, params):
    laps = races(2.0, 2.0, noise=0.005)
    raced(samples, params)
    assert len(laps) == FEWEST_LAPS
    assert 2 * sum(laps) == pytest.approx(params.seconds), "a side has two places in each lap"
    laps = races(2.0, 2.0, noise=0.065)
    raced(samples, params)
    assert FEWEST_LAPS < len(laps) < MOST_LAPS
    laps = races(2.0, 2.0, noise=0.5)
    raced(samples, params)
    assert len(laps) == MOST_LAPS


def test_what_placement_adds_is_shared_by_all_batch_sizes_and_less_with_more_laps(races, samples, params):
    races(2.0, 2.0)
    few = list(raced(samples, params).values())
    assert {each.shared for each in few} == {PLACEMENT / FEWEST_LAPS**0.5}
    assert together(few).shared == few[0].shared
    assert together(few).error == pytest.approx(few[0].error / len(few) ** 0.5)
    races(2.0, 2.0, noise=0.5)
    assert {each.shared for each in raced(samples, params).values()} == {PLACEMENT / MOST_LAPS**0.5}


def test_a_race_that_leaves_too_much_to_chance_tells_nothing_but_what_is_beyond_it(races, samples, params):
    races(2.0, 2.0, noise=1.0)
    (only,) = judged(raced(samples, params))
    assert only.outcome == Outcome.NOT_COMPARABLE
    assert only.again
    assert "may be chance: measure again" in only.why
    races(2.0, 4.0, noise=0.5)
    assert conclusion(judged(raced(samples, params))) == Outcome.REGRESSION


def test_a_batch_size_that_lost_clearly_is_told_though_the_others_scatter():
    shifts = {
        "side by side, batch 1": SpeedChange(batch=1, log=-0.3, error=0.005),
        "side by side, batch 8": SpeedChange(batch=8, log=0.3, error=0.2),
    }
    everything, lost = judged(shifts)
    assert everything.outcome == Outcome.NOT_COMPARABLE
    assert (lost.figure, lost.outcome) == ("side by side, batch 1", Outcome.REGRESSION)


def test_a_race_takes_the_place_of_ratios_and_of_what_stood_against_them(run):
    before, after = run(13.0, 4.4), run(9.0, 3.0, others=0.9)
    assert conclusion(compare_runs(before, after, 0.99)) == Outcome.NOT_COMPARABLE
    steady = {f"side by side, batch {batch}": SpeedChange(batch=batch, log=0.001, error=0.01) for batch in (1, 8)}
    changes = compare_runs(before, after, 0.99, {"int8": steady})
    assert conclusion(changes) == Outcome.NO_CHANGE
    assert [change.figure for change in changes][:3] == [TOGETHER, *steady]
    slower = {figure: shift._replace(log=-0.1) for figure, shift in steady.items()}
    assert conclusion(compare_runs(before, after, 0.99, {"int8": slower})) == Outcome.REGRESSION
    assert conclusion(compare_runs(before, after, 0.99, {"fp32": slower})) == Outcome.NOT_COMPARABLE


def test_engines_are_really_raced(built, tiny_onnx, machine, build, manifest, samples, whole, tmp_path):
    """Another profile makes another file of the same graph."""
    other = build.model_copy(update={"tf32": False})
    folder = tmp_path / "fp32"
    build_engine("fp32", tiny_onnx, target_of(machine, other.tensorrt), other, manifest, folder)
    shifts = race_engines(built, folder, samples, whole)
    if len(shifts) == 1:
        pytest.fail("the two builds are the same file, so nothing was raced")
    assert [shift.batch for shift in shifts.values()] == [2, 8]
    assert all(abs(shift.log) < 1 and 0 < shift.before < 1000 and 0 < shift.after < 1000 for shift in shifts.values())


def test_the_same_file_needs_no_race(races, built, samples, whole, tmp_path):
    laps = races(1.0, 1.0)
    copy = shutil.copytree(built, tmp_path / "fp32")
    assert conclusion(judged(race_engines(built, copy, samples, whole))) == Outcome.NO_CHANGE
    assert not laps


def test_engines_of_other_tensors_are_not_raced(
    built, pair_onnx, pair_build, machine, manifest, samples, whole, tmp_path
):
    two = manifest.model_copy(update={"inputs": ("image", "numbers"), "preprocessing": None})
    folder = tmp_path / "pair"
    build_engine("fp32", pair_onnx, target_of(machine, pair_build.tensorrt), pair_build, two, folder)
    with pytest.raises(EngineryError, match="fp32: the two engines take or give other tensors"):
        race_engines(built, folder, samples, whole)


def test_an_engine_of_another_version_is_not_opened(built, machine, monkeypatch, samples, whole):
    newer = machine.model_copy(update={"runtime_version": "9999.1"})
    monkeypatch.setattr(duel_module, "describe_machine", lambda runtime: newer)
    with pytest.raises(EngineryError, match="was built for another machine: runtime_version"):
        race_engines(built, built, samples, whole)
