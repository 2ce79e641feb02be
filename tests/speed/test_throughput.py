import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from enginery.core.params.benchmark import BenchmarkParams
from enginery.engine.build import build_engine
from enginery.engine.target import target_of
from enginery.speed.throughput import Client, ask_at_once, engine_throughput, measure_throughput


def server(seconds, at_once):
    """Answers so many requests at once, each after so many seconds."""
    free = threading.Semaphore(at_once)

    def call():
        with free:
            time.sleep(seconds)

    return call


@pytest.fixture
def clients():
    """So many clients of one server, each with a thread of its own."""
    with ExitStack() as opened:

        def make(ask, requests):
            return [Client(ask, opened.enter_context(ThreadPoolExecutor(1))) for _ in range(requests)]

        yield make


def test_a_client_asks_always_from_the_same_thread(clients):
    asking = []
    two = clients(lambda: asking.append(threading.get_ident()), 2)
    for _ in range(3):
        ask_at_once(two, 0.0)
    assert len(set(asking)) == 2


def test_requests_in_flight_are_answered_side_by_side(clients):
    one, four = (ask_at_once(clients(server(0.01, 4), requests), 0.4) for requests in (1, 4))
    assert len(four[0]) == pytest.approx(4 * len(one[0]), rel=0.3)
    assert np.median(four[0]) == pytest.approx(np.median(one[0]), rel=0.3)


def test_where_only_one_is_answered_at_a_time_the_others_wait(clients):
    """Four in flight and a hundred answers a second: each takes 40 ms on average, whoever is served first."""
    four = clients(server(0.01, 1), 4)
    answered, took = ask_at_once(four, 1.0)
    assert np.mean(answered) == pytest.approx(4 * took / len(answered), rel=0.2)
    (row,) = measure_throughput({4: four}, batch=8, seconds=1.0)
    assert (row.batch, row.requests) == (8, 4)
    assert row.images_per_second == pytest.approx(800, rel=0.3)


def test_every_client_is_answered_at_least_once(clients):
    assert len(ask_at_once(clients(server(0.2, 1), 2), 0.0)[0]) == 2


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_engine_answers_several_requests_at_once(
    tiny_onnx, machine, build, manifest, samples, inference, tmp_path, runtime
):
    here = machine.model_copy(update={"runtime": runtime})
    if runtime == "onnxruntime":
        from enginery.engine.this_machine import describe_machine

        here = describe_machine(runtime)
    build_engine("fp32", tiny_onnx, target_of(here, build.tensorrt), build, manifest, tmp_path / "engine")
    params = BenchmarkParams(
        batches=(2, 8), seconds=0.1, baselines=("eager",), requests=(1, 2, 3), confidence=0.95, seed=0
    )
    found = engine_throughput(tmp_path / "engine", here, inference, samples, params)
    assert [(row.batch, row.requests) for row in found] == [(batch, n) for batch in (2, 8) for n in (1, 2, 3)]
    for row in found:
        assert row.images_per_second > 0
        assert 0 < row.p50 <= row.p99


def test_side_by_side_each_request_gets_the_answer_to_its_own_question(
    tiny_onnx, machine, build, manifest, inference, tmp_path
):
    from enginery.engine.engine import open_engines

    build_engine("fp32", tiny_onnx, target_of(machine, build.tensorrt), build, manifest, tmp_path / "engine")
    engines = open_engines(tmp_path / "engine", machine, inference, 3)
    rng = np.random.default_rng(0)
    questions = [rng.normal(0, 1, (4, 3, 8, 8)).astype(np.float32) for _ in engines]
    alone = [
        engine.run({"input": question})["logits"].copy() for engine, question in zip(engines, questions, strict=True)
    ]
    wrong = []

    def ask(engine, question, wanted):
        for _ in range(50):
            if not np.allclose(engine.run({"input": question})["logits"], wanted, atol=1e-5):
                wrong.append(question)

    threads = [threading.Thread(target=ask, args=each) for each in zip(engines, questions, alone, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
