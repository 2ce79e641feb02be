"""How many requests an engine answers when several are in flight: what a server meets, where latency waits for one."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from statistics import median

import numpy as np

from enginery.core.params import BenchmarkParams, InferenceParams
from enginery.core.records import Machine, Throughput
from enginery.engines import Engine
from enginery.graphs import INPUT
from enginery.samples import SampleSet
from enginery.timing import Contender

SLICES = 5


def engine_throughput(
    folder: Path, here: Machine, inference: InferenceParams, samples: SampleSet, params: BenchmarkParams
) -> tuple[Throughput, ...]:
    found: list[Throughput] = []
    with ExitStack() as opened:
        engines = {requests: Engine.open_many(folder, here, inference, requests) for requests in params.requests}
        for engine in chain.from_iterable(engines.values()):
            opened.enter_context(engine)
        for batch in params.batches:
            feeds = {INPUT: samples.read_at(np.arange(batch) % len(samples))}
            callers = {requests: [engine.bind(feeds) for engine in engines[requests]] for requests in engines}
            found += measure_throughput(callers, batch, params.seconds)
    return tuple(found)


def measure_throughput(callers: Mapping[int, Sequence[Contender]], batch: int, seconds: float) -> list[Throughput]:
    """Callers by how many ask at once; each number has its slices of the time in turns, and the median of them."""
    rates: dict[int, list[float]] = {requests: [] for requests in callers}
    latencies: dict[int, list[float]] = {requests: [] for requests in callers}
    for _ in range(SLICES):
        for requests, calls in callers.items():
            answered, took = ask_at_once(calls, seconds / SLICES)
            rates[requests].append(len(answered) / took)
            latencies[requests] += answered
    return [
        Throughput(
            batch=batch,
            requests=requests,
            images_per_second=batch * median(rates[requests]),
            p50=1000 * float(np.percentile(latencies[requests], 50)),
            p99=1000 * float(np.percentile(latencies[requests], 99)),
        )
        for requests in callers
    ]


def ask_at_once(calls: Sequence[Contender], seconds: float) -> tuple[list[float], float]:
    """Each caller asks again as soon as it was answered. Returns the seconds of each answer, and of it all."""
    with ThreadPoolExecutor(len(calls)) as threads:
        for call in calls:  # not counted, nor at once: what is captured into a graph must have the GPU to itself
            call()
        started = time.perf_counter()
        answered = list(threads.map(lambda call: _ask_until(started + seconds, call), calls))
        return [latency for latencies in answered for latency in latencies], time.perf_counter() - started


def _ask_until(deadline: float, call: Contender) -> list[float]:
    latencies: list[float] = []
    while (started := time.perf_counter()) < deadline or not latencies:
        call()
        latencies.append(time.perf_counter() - started)
    return latencies
