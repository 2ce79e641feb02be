"""Find what a call costs whose batch size is another than that of the call before, beside one whose is the same.

    python benchmarks/new_shapes.py onnxruntime a.onnx b.onnx    # on the GPU, if there is one

Each graph is compiled as the stage build does, and called with the batch sizes in turns, several calls of each.
"""

import json
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from graphs import BATCHES, Noise, opened

from enginewright.core.params.all import Params
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.read_interface import read_blueprint

TURNS, CALLS = 8, 4


def measure(runtime: str, graph: Path) -> dict[str, Any]:
    """Return the milliseconds of calls by batch size: the first of each turn, and those after it."""
    blueprint = read_blueprint(graph, Params.read().build)
    row: dict[str, Any] = {"graph": graph.name}
    with tempfile.TemporaryDirectory() as scratch:
        load_runtime(runtime).compile(graph, blueprint, Path(scratch))
        with opened(runtime, Path(scratch), blueprint) as bind:
            calls = {batch: bind(Noise(blueprint.interface).cycled(batch)) for batch in BATCHES}
            rounds = [
                {batch: [timed(call) for _ in range(CALLS)] for batch, call in calls.items()} for _ in range(TURNS)
            ]
    for batch in BATCHES:
        turns = [each[batch] for each in rounds[1:]]  # in the first, what is new is also compiled
        row[str(batch)] = {
            "another before": round(median(turn[0] for turn in turns), 3),
            "the same before": round(median(call for turn in turns for call in turn[1:]), 3),
        }
    return row


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - started)


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runtime", choices=("onnxruntime", "openvino"))
    parser.add_argument("graphs", nargs="+", type=Path)
    options = parser.parse_args()
    for graph in options.graphs:
        print(json.dumps(measure(options.runtime, graph)), flush=True)


if __name__ == "__main__":
    main()
