"""The search for the most samples a second within a latency."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
import pytest

from enginewright.core.params.build import BenchmarkParams
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engines
from enginewright.engine.machine import target_of
from enginewright.measure.benchmark import engine_throughput
from enginewright.measure.within import Queue, Serving, search_within, serve, simulate


@pytest.mark.parametrize(
    ("arrivals", "setting", "answered"),
    [
        ([0.0, 0.1, 5.0], Serving(2, 1, 0.5), [1.1, 1.0, 1.5]),  # full at once, then the delay
        ([0.0, 0.1, 0.2], Serving(2, 1, 0.0), [1.0, 1.9, 1.8]),  # gathered while one is answered
        ([0.0, 0.5, 0.6], Serving(1, 2, 0.0), [1.0, 1.0, 1.4]),  # two in flight, and the third waits
    ],
)
def test_batches_wait_and_are_filled(arrivals, setting, answered):
    """All calls take a second."""
    assert list(simulate(arrivals, [0] * len(arrivals), [[1.0], [1.0]], setting)) == pytest.approx(answered)


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_the_simulation_agrees_with_the_theory_of_queues(load):
    """Where calls last as long as an exponential distribution says, so do answers: 99 of 100 take under log(100) of its
    mean, which is 1 / (1 - load)."""
    exponential = -np.log(1 - (np.arange(2000) + 0.5) / 2000)
    queue = Queue({(1, 1): exponential}, False, np.random.default_rng(0))
    found = queue.most(Serving(1, 1, 0.0), np.log(100) / (1 - load))
    assert found == pytest.approx(load, abs=0.05)


def test_a_batch_is_filled_up_to_the_next_size_that_was_timed():
    timed = {(size, 1): [1.0] for size in (1, 2, 8)}
    rng = np.random.default_rng(0)
    assert Queue(timed, False, rng).filled_up(8) == [1, 2, 8, 8, 8, 8, 8, 8]
    assert Queue(timed, True, rng).filled_up(2) == [2, 2]


def test_a_tight_latency_asks_for_small_batches_and_a_loose_one_for_large_ones():
    timed = {(size, 1): np.linspace(0.9, 1.1, 99) * took for size, took in ((1, 0.001), (8, 0.004))}
    queue = Queue(timed, True, np.random.default_rng(0))
    found = {limit: queue.best(limit) for limit in (0.0005, 0.0035, 0.05)}
    assert found[0.0005] == (None, 0.0)
    assert (found[0.0035][0].batch, found[0.05][0].batch) == (1, 8)
    assert found[0.0035][1] < 1000 < found[0.05][1] < 2000  # the most that calls of 1 and of 8 could answer


def test_a_run_answers_each_sample_after_it_came():
    with ExitStack() as opened:
        asks = [partial(time.sleep, 0.002)] * 4
        workers = [(asks, opened.enter_context(ThreadPoolExecutor(1))) for _ in range(2)]
        took = serve(workers, np.linspace(0, 0.2, 50).tolist(), Serving(4, 2, 0.001))
    assert len(took) == 50
    assert took.min() >= 0.002


def test_a_search_says_what_was_promised_and_what_was_delivered(
    tiny_onnx, machine, build, manifest, samples, inference, tmp_path, monkeypatch
):
    for name, less in {"SECONDS": 0.1, "DRAWS": 3, "LIMITS": (1.0,)}.items():
        monkeypatch.setattr(f"enginewright.measure.within.{name}", less)
    build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, build.tensorrt), build, tmp_path / "engine"
    )
    open_for = partial(open_engines, tmp_path / "engine", machine, inference)
    asked = BenchmarkParams(batches=(2, 4), seconds=0.1, requests=(1, 2), within_ms=2000)
    answers = engine_throughput(open_for, samples, asked)
    found = search_within(answers, True, open_for, samples, asked)
    assert 0 < found.low <= found.high
    assert 0 < found.at_random.low <= found.at_random.high
    assert found.at_random.images_per_second <= found.promised
    assert found.back_to_back.images_per_second == max(each.images_per_second for each in answers)
    none = search_within(answers, True, open_for, samples, asked.model_copy(update={"within_ms": 1e-4}))
    assert (none.at_random, none.back_to_back, none.promised) == (None, None, 0.0)
    assert none.least == min(each.p99 for each in answers)
    assert search_within(answers, True, open_for, samples, asked.model_copy(update={"within_ms": None})) is None
