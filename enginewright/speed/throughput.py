"""Measure how many requests an engine answers per second when several are in flight, as in a server."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from enginewright.core.params.benchmark import BenchmarkParams
from enginewright.core.params.inference import InferenceParams
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engines
from enginewright.engine.machine import Machine
from enginewright.speed.records import Throughput
from enginewright.speed.timing import Contender

SLICES = 5


class Client(NamedTuple):
    """A client that asks from one thread only: ONNX Runtime keeps its captured CUDA graphs by thread."""

    ask: Contender
    thread: ThreadPoolExecutor


def engine_throughput(
    folder: Path, here: Machine, inference: InferenceParams, samples: SampleSet, params: BenchmarkParams
) -> tuple[Throughput, ...]:
    """Measure the throughput at each batch size, for each number of requests in flight."""
    found: list[Throughput] = []
    with ExitStack() as opened:
        counts = sorted({1, *params.requests})  # the others are compared with one request at a time
        engines = {requests: open_engines(folder, here, inference, requests) for requests in counts}
        for engine in chain.from_iterable(engines.values()):
            opened.enter_context(engine)
        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(max(engines))]
        for batch in params.batches:
            feeds = samples.cycled(batch)
            clients = {
                requests: [Client(engine.bind(feeds), thread) for engine, thread in zip(group, threads, strict=False)]
                for requests, group in engines.items()
            }
            found += measure_throughput(clients, batch, params.seconds)
    return tuple(found)


def measure_throughput(clients: Mapping[int, Sequence[Client]], batch: int, seconds: float) -> list[Throughput]:
    """Measure groups of clients, by their size. The groups take slices of the time in turns, and the median counts."""
    rates: dict[int, list[float]] = {requests: [] for requests in clients}
    latencies: dict[int, list[float]] = {requests: [] for requests in clients}
    for _ in range(SLICES):
        for requests, group in clients.items():
            answers, took = ask_at_once(group, seconds / SLICES)
            rates[requests].append(len(answers) / took)
            latencies[requests] += answers
    return [
        Throughput(
            batch=batch,
            requests=requests,
            runs=len(times),
            images_per_second=batch * median(rates[requests]),
            p50=1000 * float(np.percentile(times, 50)),
            p99=1000 * float(np.percentile(times, 99)),
        )
        for requests, times in latencies.items()
    ]


def ask_at_once(clients: Sequence[Client], seconds: float) -> tuple[list[float], float]:
    """Let each client ask again as soon as it is answered. Return the seconds of each answer, and of all together."""
    for ask, thread in clients:  # a first call, one after the other: a capture must have the GPU to itself
        thread.submit(ask).result()
    started = time.perf_counter()
    futures = [thread.submit(_ask_until, started + seconds, ask) for ask, thread in clients]
    answers = list(chain.from_iterable(future.result() for future in futures))
    return answers, time.perf_counter() - started


def _ask_until(deadline: float, ask: Contender) -> list[float]:
    latencies: list[float] = []
    while (started := time.perf_counter()) < deadline or not latencies:
        ask()
        latencies.append(time.perf_counter() - started)
    return latencies
