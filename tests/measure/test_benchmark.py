"""What is raced, and what is told of its timings."""

import itertools
import time
from types import SimpleNamespace

import pytest

from enginewright.core.params.build import Axis, BenchmarkParams, Profile, Range
from enginewright.measure import benchmark
from enginewright.measure.benchmark import race_contenders, race_over_sizes, raw_rows, summarize, with_tuned_batches
from enginewright.measure.records import Contention, baseline_title
from enginewright.measure.timing import Call, Round, Timings, WarmUp, contention_problems

PARAMS = BenchmarkParams(batches=(8, 4), seconds=0.01, baselines=("eager",), requests=(1,), confidence=0.95, seed=0)
ROUND = Round({"engine": [Call(0.004, 0.002), Call(0.008, 0.003)], "eager": [Call(0.01, None)]}, pace=2e-6)


def test_timings_are_told_in_milliseconds():
    warm = WarmUp(seconds=0.004, drift=0.5)
    timings = Timings([ROUND], {"engine": warm, "eager": warm})
    found = summarize("engine", 8, timings)
    assert (found.runs, found.p50, found.compute, found.warm_up_drift) == (2, pytest.approx(6), pytest.approx(2.5), 0.5)
    assert (found.spread, found.images_per_second) == (pytest.approx(2 / 6), pytest.approx(8 / 0.006))
    assert summarize("eager", 8, timings).compute is None


def test_each_call_is_a_row():
    first, second, eager = raw_rows({8: Timings([ROUND])})
    assert first == ("engine", 8, 0, pytest.approx(2), pytest.approx(4), pytest.approx(2))
    assert (second[4:], eager[4:]) == ((pytest.approx(8), pytest.approx(3)), (pytest.approx(10), None))


@pytest.mark.parametrize(
    ("taken", "sentences"),
    [
        ({}, []),
        ({"others": 3.9}, ["other programs took 3.9 of 4 cores"]),
        ({"stolen": 1.5}, ["the host took 1.50 of 4 cores away"]),
        ({"throttled": 1.25}, ["the container's CPU quota held back 1.25 of 2 threads"]),
    ],
)
def test_what_disturbed_the_machine_is_told(taken, sentences):
    calm = {"others": 0.0, "stolen": 0.0, "throttled": 0.0}
    assert contention_problems(Contention(cores=4, **calm | taken), threads=2) == sentences


def test_a_baseline_has_a_title():
    assert [baseline_title(each) for each in ("onnxruntime", "eager")] == ["ONNX Runtime", "PyTorch eager"]


@pytest.mark.parametrize(("tuned", "raced"), [([], (8, 4)), ([4], (8, 4)), ([4, 8], (8, 4)), ([2, 6], (2, 4, 6, 8))])
def test_each_batch_size_that_a_profile_is_tuned_for_is_raced(build, tuned, raced):
    profiles = tuple({"batch": Range(min=2, opt=batch, max=8)} for batch in tuned)
    assert with_tuned_batches(PARAMS, build.model_copy(update={"profiles": profiles})).batches == raced


@pytest.mark.parametrize(("growth", "told"), [(1.0, pytest.approx(3)), (1.5, None)])
def test_the_pace_that_all_rounds_share_is_told_in_microseconds(samples, growth, told):
    paces = (3e-6 * growth**number for number in itertools.count())
    contenders = dict.fromkeys(("engine", "eager"), lambda feeds: lambda: time.sleep(1e-4))
    pace = race_contenders(contenders, samples, PARAMS, lambda: next(paces), "").pace
    assert (pace.microseconds, pace.set_aside) == (told, 0)


def test_other_sizes_are_raced_at_the_batch_that_is_tuned_for(build, monkeypatch):
    def race(contenders, sized, params, *others):
        raced.append((sized["words"], params.batches))
        return SimpleNamespace(latencies=(), ratios=())

    raced = []
    monkeypatch.setattr(benchmark, "race_contenders", race)
    samples = SimpleNamespace(at=lambda sizes, profile: sizes)
    words = Axis(min=2, opt=6, max=16, values={"input": 1})
    for axes in ({}, {"words": words}):
        sized = build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=7, max=8), axes=axes)})
        found = race_over_sizes({}, samples, sized, PARAMS, lambda: 0.0, "")
        assert [(each.axis, each.size) for each in found] == [("words", size) for size in (2, 6, 11, 16) if axes]
    assert raced == [(size, (8,)) for size in (2, 6, 11, 16)]
