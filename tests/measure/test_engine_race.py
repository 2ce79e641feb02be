"""Races of two engines, mostly with made-up times. benchmarks/measuring/alarm.py measures races on a real machine."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import target_of
from enginewright.measure import race as engine_race
from enginewright.measure import race as race_in_laps
from enginewright.measure.comparison import (
    TOGETHER,
    SpeedChange,
    combine,
    compare_runs,
    conclusion,
    deviations_allowed,
    judge_race,
)
from enginewright.measure.race import FEWEST_LAPS, LAP_NOISE, MOST_LAPS, race_folders, race_sides
from enginewright.measure.records import Outcome
from enginewright.measure.timing import Call, Round, Timings


@pytest.fixture
def params():
    return Params.read().benchmark.model_copy(update={"batches": (2, 8), "seconds": 0.2})


@pytest.fixture
def all_params(params, inference):
    return Params.read().model_copy(update={"benchmark": params, "inference": inference})


@pytest.fixture
def races(monkeypatch):
    """Replace a race by made-up times: the seconds of each side, how much faster a later copy is, and noise.

    Returns a list that gets the seconds of each lap.
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

        monkeypatch.setattr(race_in_laps, "race", race)
        return laps

    return make


def race_made_up_sides(samples, params):
    side = nullcontext(lambda feeds: lambda: None)
    return race_sides({"before": lambda: side, "after": lambda: side}, samples, params, "a race")


def judged(speed_changes):
    return judge_race("int8", speed_changes, deviations_allowed(0.99, len(speed_changes) + 2))


def test_a_later_engine_that_takes_longer_is_slower_by_as_much(races, samples, params):
    races(2.0, 2.2, noise=0.01)
    everything, *batches = judged(race_made_up_sides(samples, params))
    assert everything.figure == TOGETHER
    assert everything.outcome == Outcome.REGRESSION
    assert everything.change == pytest.approx(-0.09, abs=0.01)
    assert [change.figure for change in batches] == ["side by side, batch 2", "side by side, batch 8"]
    assert (batches[0].before, batches[0].after) == (pytest.approx(2000, rel=0.01), pytest.approx(2200, rel=0.01))
    races(2.0, 2.2)
    exact = next(iter(race_made_up_sides(samples, params).values()))
    assert (exact.before, exact.after) == (pytest.approx(2000), pytest.approx(2200))


def test_an_advantage_of_copies_opened_later_is_no_change(races, samples, params):
    races(2.0, 2.0, later_is_faster=0.1)
    assert judged(race_made_up_sides(samples, params))[0].change == pytest.approx(0, abs=1e-6)


def test_laps_are_added_until_the_error_is_small(races, samples, params):
    laps = races(2.0, 2.0, noise=0.005)
    race_made_up_sides(samples, params)
    assert len(laps) == FEWEST_LAPS
    assert 2 * sum(laps) == pytest.approx(params.seconds), "each lap opens a side twice"
    laps = races(2.0, 2.0, noise=0.065)
    race_made_up_sides(samples, params)
    assert FEWEST_LAPS < len(laps) < MOST_LAPS
    laps = races(2.0, 2.0, noise=0.5)
    race_made_up_sides(samples, params)
    assert len(laps) == MOST_LAPS


def test_all_batch_sizes_share_the_lap_noise_and_more_laps_make_it_smaller(races, samples, params):
    races(2.0, 2.0)
    few = list(race_made_up_sides(samples, params).values())
    assert {each.shared for each in few} == {LAP_NOISE / FEWEST_LAPS**0.5}
    assert combine(few).shared == few[0].shared
    assert combine(few).error == pytest.approx(few[0].error / len(few) ** 0.5)
    races(2.0, 2.0, noise=0.5)
    assert {each.shared for each in race_made_up_sides(samples, params).values()} == {LAP_NOISE / MOST_LAPS**0.5}


def test_a_race_that_leaves_too_much_to_chance_shows_only_larger_changes(races, samples, params):
    races(2.0, 2.0, noise=1.0)
    (only,) = judged(race_made_up_sides(samples, params))
    assert only.outcome == Outcome.NOT_COMPARABLE
    assert only.again
    assert "may be chance on a busy machine: measure again" in only.why
    races(2.0, 4.0, noise=0.5)
    assert conclusion(judged(race_made_up_sides(samples, params))) == Outcome.REGRESSION


def test_a_clear_loss_at_one_batch_size_counts_though_others_are_noisy():
    speed_changes = {
        "side by side, batch 1": SpeedChange(batch=1, log=-0.3, error=0.005),
        "side by side, batch 8": SpeedChange(batch=8, log=0.3, error=0.2),
    }
    everything, lost = judged(speed_changes)
    assert everything.outcome == Outcome.NOT_COMPARABLE
    assert (lost.figure, lost.outcome) == ("side by side, batch 1", Outcome.REGRESSION)


def test_a_race_replaces_ratios_even_if_these_were_not_comparable(run):
    before, after = run(13.0, 4.4), run(9.0, 3.0, others=0.9)
    assert conclusion(compare_runs(before, after, 0.99)) == Outcome.NOT_COMPARABLE
    steady = {f"side by side, batch {batch}": SpeedChange(batch=batch, log=0.001, error=0.01) for batch in (1, 8)}
    changes = compare_runs(before, after, 0.99, {"int8": steady})
    assert conclusion(changes) == Outcome.NO_CHANGE
    assert [change.figure for change in changes][:3] == [TOGETHER, *steady]
    slower = {figure: change._replace(log=-0.1) for figure, change in steady.items()}
    assert conclusion(compare_runs(before, after, 0.99, {"int8": slower})) == Outcome.REGRESSION
    assert conclusion(compare_runs(before, after, 0.99, {"fp32": slower})) == Outcome.NOT_COMPARABLE


def test_real_engines_are_raced(built, tiny_onnx, machine, build, manifest, samples, all_params, tmp_path):
    """Another setting of TF32 makes another file from the same graph."""
    other = build.model_copy(update={"tf32": False})
    folder = tmp_path / "fp32"
    build_engine(DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, other.tensorrt), other, folder)
    found = race_folders(built, folder, samples, all_params)
    if len(found) == 1:
        pytest.fail("the two builds are the same file, so nothing was raced")
    assert [change.batch for change in found.values()] == [2, 8]
    assert all(abs(each.log) < 1 and 0 < each.before < 1000 and 0 < each.after < 1000 for each in found.values())


def test_the_same_file_needs_no_race(races, built, samples, all_params, tmp_path):
    laps = races(1.0, 1.0)
    copy = shutil.copytree(built, tmp_path / "fp32")
    assert conclusion(judged(race_folders(built, copy, samples, all_params))) == Outcome.NO_CHANGE
    assert not laps


def test_engines_with_different_tensors_are_not_raced(
    built, pair_onnx, pair_build, machine, manifest, samples, all_params, tmp_path
):
    two = manifest.model_copy(update={"inputs": ("image", "numbers"), "preprocessing": None})
    folder = tmp_path / "pair"
    build_engine(DescribedGraph("fp32", pair_onnx, two), target_of(machine, pair_build.tensorrt), pair_build, folder)
    with pytest.raises(EnginewrightError, match="fp32: the two engines take or give other tensors"):
        race_folders(built, folder, samples, all_params)


def test_an_engine_of_another_version_is_not_opened(built, machine, monkeypatch, samples, all_params):
    newer = machine.model_copy(update={"runtime_version": "9999.1"})
    monkeypatch.setattr(engine_race, "describe_machine", lambda runtime: newer)
    with pytest.raises(EnginewrightError, match="was built for another machine: runtime_version"):
        race_folders(built, built, samples, all_params)
