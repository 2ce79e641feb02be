import threading
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
from enginewright.engine.runtimes import describe_machine
from enginewright.measure.benchmark import Client, ask_at_once, engine_throughput, measure_throughput


class Server:
    """It answers `at_once` requests at the same time, each after `seconds`."""

    def __init__(self, seconds, at_once):
        self.seconds, self.free, self.lock = seconds, threading.Semaphore(at_once), threading.Lock()
        self.calls = self.inside = self.most = 0

    def __call__(self):
        self._count(1)
        with self.free:
            time.sleep(self.seconds)
        self._count(-1)

    def _count(self, more):
        with self.lock:
            self.calls += more > 0
            self.inside += more
            self.most = max(self.most, self.inside)


@pytest.fixture
def clients():
    """Make clients of one server, each with its own thread."""
    with ExitStack() as opened:

        def make(ask, requests):
            return [Client(ask, opened.enter_context(ThreadPoolExecutor(1))) for _ in range(requests)]

        yield make


def test_a_client_asks_from_one_thread_only(clients):
    threads = []
    two = clients(lambda: threads.append(threading.get_ident()), 2)
    for _ in range(3):
        ask_at_once(two, 0.0)
    assert len(set(threads)) == 2


@pytest.mark.parametrize("requests", [1, 4])
def test_requests_in_flight_are_answered_side_by_side(clients, requests):
    server, began = Server(0.01, 4), time.perf_counter()
    answered, took = ask_at_once(clients(server, requests), 0.4)
    assert 0.4 <= took <= time.perf_counter() - began
    assert server.most == requests
    assert len(answered) == server.calls - requests  # each begins with a call that is not counted
    assert len(answered) > requests
    assert min(answered) >= 0.01
    assert sum(answered) == pytest.approx(requests * took, rel=0.3)
    assert sum(answered) <= requests * took


def test_requests_wait_if_only_one_is_answered_at_a_time(clients):
    """An answer takes 40 ms or more on average, with four in flight and at most a hundred a second."""
    four = clients(Server(0.01, 1), 4)
    answered, took = ask_at_once(four, 1.0)
    assert np.mean(answered) == pytest.approx(4 * took / len(answered), rel=0.2)
    assert len(answered) <= 100 * took
    ((row, times),) = measure_throughput({4: four}, batch=8, seconds=1.0, limit=0.0).items()
    assert (row.batch, row.requests, row.runs) == (8, 4, len(times))
    assert row.images_per_second == pytest.approx(8 * 4 / np.mean(times), rel=0.2)
    assert row.images_per_second <= 800


def test_every_client_is_answered_at_least_once(clients):
    assert len(ask_at_once(clients(Server(0.2, 1), 2), 0.0)[0]) == 2


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_engine_answers_several_requests_at_once(
    tiny_onnx, machine, build, manifest, samples, inference, tmp_path, runtime
):
    here = machine if runtime == machine.runtime else describe_machine(runtime)
    build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest), target_of(here, build.tensorrt), build, tmp_path / "engine"
    )
    params = BenchmarkParams(
        batches=(2, 8), seconds=0.1, baselines=("eager",), requests=(1, 2, 3), confidence=0.95, seed=0
    )
    found = engine_throughput(partial(open_engines, tmp_path / "engine", here, inference), samples, params)
    assert [(row.batch, row.requests) for row in found] == [(batch, n) for batch in (2, 8) for n in (1, 2, 3)]
    for row in found:
        assert row.images_per_second > 0
        assert 0 < row.p50 <= row.p99


def test_each_of_several_requests_gets_the_answer_to_its_own_input(
    tiny_onnx, machine, build, manifest, inference, tmp_path
):
    build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, build.tensorrt), build, tmp_path / "engine"
    )
    engines = open_engines(tmp_path / "engine", machine, inference, 3)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(0, 1, (4, 3, 8, 8)).astype(np.float32) for _ in engines]
    wanted = [engine.run({"input": images})["logits"].copy() for engine, images in zip(engines, inputs, strict=True)]
    wrong = []

    def ask(engine, images, logits):
        for _ in range(50):
            if not np.allclose(engine.run({"input": images})["logits"], logits, atol=1e-5):
                wrong.append(images)

    threads = [threading.Thread(target=ask, args=each) for each in zip(engines, inputs, wanted, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
