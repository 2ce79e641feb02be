"""Measure how far requests side by side hide the copies to a GPU and back behind the computation.

    python benchmarks/gpu/overlap.py overlap.jsonl artifacts/engines/int8 artifacts/engines/fp16

Run it in a project, whose samples and `benchmark.batches` it takes. `of compute` is the rate as a share of that of an
engine whose copies take no time, by the GPU's clock for one request at a time.
"""

import json
import sys
from functools import partial
from pathlib import Path
from statistics import median

from enginewright.core.files import VALIDATION_SAMPLES
from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine, open_engines
from enginewright.engine.record import read_engine
from enginewright.engine.runtimes import describe_machine
from enginewright.measure.benchmark import engine_throughput
from enginewright.measure.timing import take_turn, warm_up, whole_machine

REQUESTS = (1, 2, 4)


def main() -> None:
    params = Params.read()
    asked = params.benchmark.model_copy(update={"requests": REQUESTS})
    print("| engine | batch | requests | a second | of compute | p50, ms |\n|---|---|---|---|---|---|")
    with whole_machine("overlap"), Path(sys.argv[1]).open("a") as file:
        for folder in map(Path, sys.argv[2:]):
            record = read_engine(folder)
            here, samples = describe_machine(record.target.runtime), SampleSet.open(VALIDATION_SAMPLES)
            samples, alone = samples.tuned(record.build), dict[int, float]()
            with open_engine(folder, here, params.inference) as engine:
                for batch in asked.batches:
                    call = engine.bind(samples.cycled(batch))
                    warm_up(call, asked.seconds)
                    alone[batch] = median(each.compute or each.seconds for each in take_turn(call, asked.seconds))
            for each in engine_throughput(partial(open_engines, folder, here, params.inference), samples, asked):
                share = each.images_per_second * alone[each.batch] / each.batch
                row = {"engine": folder.name, **each.model_dump(), "of_compute": round(share, 3)}
                file.write(json.dumps(row) + "\n")
                cells = f"{each.batch} | {each.requests} | {each.images_per_second:,.0f} | {share:.0%}"
                print(f"| {folder.name} | {cells} | {each.p50:.3f} |", flush=True)


if __name__ == "__main__":
    main()
