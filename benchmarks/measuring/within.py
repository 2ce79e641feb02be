"""Compare what the search within a latency finds with what running all settings finds.

The search of `benchmark.within_ms` simulates settings and runs one of them. Here each setting is run, at rates that
halve the distance to the most that it could serve. And each batch size with each number of requests in flight is asked
back to back once more. After `dvc repro`, where nothing else runs:

    python benchmarks/measuring/within.py --milliseconds 5 10 20 >> benchmarks/measuring/within.jsonl

Each row has the search's answer, and the best of all runs.
"""

import argparse
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engines
from enginewright.engine.machine import Machine
from enginewright.measure.benchmark import OpenFor, engine_throughput
from enginewright.measure.within import DELAYS, Queue, Serving, Worker, search_within, serve

SECONDS, STEPS = 2.0, 5


def run_all(queue: Queue, open_for: OpenFor, samples: SampleSet, limit: float) -> tuple[float, Serving | None]:
    """Return the highest rate of any setting that kept the limit when it was run, and that setting."""
    rng, most, chosen = np.random.default_rng(1), 0.0, None
    for batch, requests in queue.calls:
        with ExitStack() as opened:
            workers, filled = list[Worker](), queue.filled_up(batch)
            for engine in map(opened.enter_context, open_for(requests)):
                bound = {size: engine.bind(samples.cycled(size)) for size in {*filled}}
                workers.append(([bound[size] for size in filled], opened.enter_context(ThreadPoolExecutor(1))))

            def keeps(setting: Serving, rate: float, workers: list[Worker] = workers) -> bool:
                arrivals = (rng.exponential(size=int(rate * SECONDS) + 1).cumsum() / rate).tolist()
                return float(np.percentile(serve(workers, arrivals, setting), 99)) <= limit

            for delay in DELAYS if batch > 1 else DELAYS[:1]:
                setting = Serving(batch, requests, delay * limit)
                high = batch * requests / float(np.mean(queue.seconds(setting)[-1]))
                low = most
                if low >= high or not keeps(setting, max(low, high / 50)):
                    continue
                for _ in range(STEPS):
                    rate = (low + high) / 2
                    low, high = (rate, high) if keeps(setting, rate) else (low, rate)
                if low > most:
                    most, chosen = low, setting
    return most, chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precisions", nargs="+", default=["fp32", "int8"])
    parser.add_argument("--milliseconds", type=float, nargs="+", required=True)
    chosen = parser.parse_args()
    params, here = Params.read(), Machine.read(Path("artifacts/machine.json"))
    samples = SampleSet.open(Path("artifacts/samples/validation")).tuned(params.build)
    padded = here.runtime == "openvino"
    for precision in chosen.precisions:
        open_for = partial(open_engines, Path("artifacts/engines") / precision, here, params.inference.on(here.cores))
        for milliseconds in chosen.milliseconds:
            asked = params.benchmark.model_copy(update={"within_ms": milliseconds})
            answers, began = engine_throughput(open_for, samples, asked), time.perf_counter()
            found = search_within(answers, padded, open_for, samples, asked)
            searched = time.perf_counter()
            longer = asked.model_copy(update={"seconds": SECONDS})
            again = engine_throughput(open_for, samples, longer)
            timed = {(one.batch, one.requests): times for one, times in answers.items()}
            queue = Queue(timed, padded, np.random.default_rng(0))
            most, setting = run_all(queue, open_for, samples, milliseconds / 1000)
            row = {
                "machine": here.device_name,
                "precision": precision,
                "search": found and found.model_dump(exclude={"curve"}),
                "search_seconds": round(searched - began, 1),
                "all_seconds": round(time.perf_counter() - searched, 1),
                "all_back_to_back": max(
                    (one.images_per_second for one in again if one.p99 <= milliseconds), default=0.0
                ),
                "all_at_random": most,
                "all_setting": setting,
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    try:
        main()
    except (EnginewrightError, OSError) as error:
        sys.exit(f"within: {error}")
