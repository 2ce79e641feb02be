"""How many requests an engine answers when several are in flight: what a server meets, where latency waits for one."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from enginery.core.params.benchmark import BenchmarkParams
from enginery.core.params.inference import InferenceParams
from enginery.data.sample_set import SampleSet
from enginery.engine.engine import open_engines
from enginery.engine.machine import Machine
from enginery.speed.records import Throughput
from enginery.speed.timing import Contender

SLICES = 5


class Client(NamedTuple):
    """Asks always from the same thread: ONNX Runtime keeps what it captured into CUDA graphs by thread."""

    ask: Contender
    thread: ThreadPoolExecutor


def engine_throughput(
    folder: Path, here: Machine, inference: InferenceParams, samples: SampleSet, params: BenchmarkParams
) -> tuple[Throughput, ...]:
    found: list[Throughput] = []
    with ExitStack() as opened:
        counts = sorted({1, *params.requests})  # one at a time is what the others are held against
        engines = {requests: open_engines(folder, here, inference, requests) for requests in counts}
        for engine in chain.from_iterable(engines.values()):
            opened.enter_context(engine)
        threads = [opened.enter_context(ThreadPoolExecutor(1)) for _ in range(max(engines))]
        for batch in params.batches:
            feeds = samples.cycled(batch)
            clients = {
                requests: [Client(engine.bind(feeds), thread) for engine, thread in zip(them, threads, strict=False)]
                for requests, them in engines.items()
            }
            found += measure_throughput(clients, batch, params.seconds)
    return tuple(found)


def measure_throughput(clients: Mapping[int, Sequence[Client]], batch: int, seconds: float) -> list[Throughput]:
    """Clients by how many ask at once; each number has its slices of the time in turns, and the median of them."""
    rates: dict[int, list[float]] = {requests: [] for requests in clients}
    latencies: dict[int, list[float]] = {requests: [] for requests in clients}
    for _ in range(SLICES):
        for requests, them in clients.items():
            answered, took = ask_at_once(them, seconds / SLICES)
            rates[requests].append(len(answered) / took)
            latencies[requests] += answered
    return [
        Throughput(
            batch=batch,
            requests=requests,
            runs=len(latencies[requests]),
            images_per_second=batch * median(rates[requests]),
            p50=1000 * float(np.percentile(latencies[requests], 50)),
            p99=1000 * float(np.percentile(latencies[requests], 99)),
        )
        for requests in clients
    ]


def ask_at_once(clients: Sequence[Client], seconds: float) -> tuple[list[float], float]:
    """Each client asks again as soon as it was answered. Returns the seconds of each answer, and of it all."""
    for ask, thread in clients:  # not counted, nor at once: a graph that is captured must have the GPU to itself
        thread.submit(ask).result()
    started = time.perf_counter()
    answers = [thread.submit(_ask_until, started + seconds, ask) for ask, thread in clients]
    answered = list(chain.from_iterable(answer.result() for answer in answers))
    return answered, time.perf_counter() - started


def _ask_until(deadline: float, ask: Contender) -> list[float]:
    latencies: list[float] = []
    while (started := time.perf_counter()) < deadline or not latencies:
        ask()
        latencies.append(time.perf_counter() - started)
    return latencies
