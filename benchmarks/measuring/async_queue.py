"""Compare the throughput of clients with a thread each with OpenVINO's own queue of asynchronous requests.

Enginewright measures the throughput of every runtime in one way: with a client for each request in flight, which has
its own thread and buffers. OpenVINO has `AsyncInferQueue` for that. Here both run the same compiled engine in turns, a
slice of the time each, and a ratio is that of two neighbouring slices. After `dvc repro`, where nothing else runs:

    python benchmarks/measuring/async_queue.py

The exit code is 1, with a sentence, where the clients' rate is more than 3 % below the queue's.
"""

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import Engine, open_engines
from enginewright.engine.machine import Machine
from enginewright.measure.benchmark import Client, ask_at_once

SLICES, SECONDS, TOLERANCE = 21, 0.4, 0.03
Rate = Callable[[], float]  # answers a second, over one slice


def rate_of_clients(engines: list[Engine], feeds: Feeds, opened: ExitStack) -> Rate:
    clients = [Client(engine.bind(feeds), opened.enter_context(ThreadPoolExecutor(1))) for engine in engines]

    def rate() -> float:
        answered, took = ask_at_once(clients, SECONDS)
        return len(answered) / took

    return rate


def rate_of_queue(engine: Engine, requests: int, feeds: Feeds) -> Rate:
    import openvino

    session: Any = engine._session
    queue = openvino.AsyncInferQueue(session._compiled, requests)
    inputs = [{name: np.ascontiguousarray(array) for name, array in feeds.items()} for _ in range(requests)]
    for request, own in zip(queue, inputs, strict=True):
        for name, array in own.items():
            request.set_tensor(name, openvino.Tensor(array, shared_memory=True))

    def rate(_kept: object = inputs) -> float:  # OpenVINO does not keep the arrays alive
        started, asked = time.perf_counter(), 0
        while time.perf_counter() < started + SECONDS:
            queue.start_async()
            asked += 1
        queue.wait_all()
        return asked / (time.perf_counter() - started)

    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--requests", type=int, nargs="+", default=[2, 4])
    chosen = parser.parse_args()
    params, here = Params.read(), Machine.read(Path("artifacts/machine.json"))
    samples, folder = SampleSet.open(Path("artifacts/samples/validation")), Path("artifacts/engines") / chosen.precision
    print("| in flight | batch | clients, images/s | queue, images/s | clients / queue, median | ratios |")
    print("|---|---|---|---|---|---|")
    lowest = 1.0
    for requests in chosen.requests:
        with ExitStack() as opened:
            engines = open_engines(folder, here, params.inference, requests)
            for engine in engines:
                opened.enter_context(engine)
            for batch in params.benchmark.batches:
                feeds = samples.tuned(params.build).cycled(batch)
                ours, theirs = rate_of_clients(engines, feeds, opened), rate_of_queue(engines[0], requests, feeds)
                ours(), theirs()
                pairs = [(ours(), theirs()) if number % 2 else (theirs(), ours())[::-1] for number in range(SLICES)]
                ratios = [clients / queue for clients, queue in pairs]
                rates = [f"{batch * median(side):,.0f}" for side in zip(*pairs, strict=True)]
                low, high = np.quantile(ratios, [0.25, 0.75])
                print(
                    f"| {requests} | {batch} | {' | '.join(rates)} | {median(ratios):.3f} | {low:.3f} to {high:.3f} |",
                    flush=True,
                )
                lowest = min(lowest, median(ratios))
    if lowest < 1 - TOLERANCE:
        sys.exit(f"Target missed: clients reach {lowest:.1%} of the queue's rate, not {1 - TOLERANCE:.0%}.")


if __name__ == "__main__":
    try:
        main()
    except (EnginewrightError, OSError) as error:
        sys.exit(f"async_queue: {error}")
