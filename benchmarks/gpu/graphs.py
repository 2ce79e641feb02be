"""Time ONNX graphs in a runtime, compiled as the stage build does, at the smallest batch of the project's profile and
at the one that it is tuned for.

    python benchmarks/gpu/graphs.py race onnxruntime old.onnx new.onnx        # on the GPU, if there is one
    python benchmarks/gpu/graphs.py race openvino a.onnx b.onnx c.onnx d.onnx # two pairs
    python benchmarks/gpu/graphs.py shapes openvino a.onnx b.onnx

`race` says how much faster the second graph of each pair is, such as those that two commits write; both are opened anew
in laps. `shapes` says what a call costs whose batch size is another than that of the call before, beside one whose is
the same. Inputs are noise, or zeros where they are integers.
"""

import json
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

from numpy.typing import NDArray

from enginewright.core.params.all import Params
from enginewright.data.sample_set import SampleSet
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.interface import Blueprint, Interface
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.race import AFTER, BEFORE, race_sides

SECONDS, TURNS, CALLS = 2.0, 8, 4


def batches() -> tuple[int, int]:
    sizes = Params.read().build.profile.batch
    return sizes.min, sizes.opt


@dataclass(frozen=True)
class Noise:
    """Give a race what it asks of a set of samples."""

    interface: Interface

    def cycled(self, batch: int) -> dict[str, NDArray[Any]]:
        return self.interface.noise({"batch": batch}, seed=batch)


def compile_graph(runtime: str, graph: Path, folder: Path) -> Blueprint:
    blueprint = read_blueprint(graph, Params.read().build)
    folder.mkdir()
    load_runtime(runtime).compile(graph, blueprint, folder)
    return blueprint


@contextmanager
def opened(runtime: str, folder: Path, blueprint: Blueprint) -> Iterator[Callable[[Any], Callable[[], object]]]:
    (session,) = load_runtime(runtime).load(folder, blueprint, Params.read().inference, requests=1)
    with closing(session):
        yield session.bind


def race(runtime: str, before: Path, after: Path) -> dict[str, Any]:
    """Return the milliseconds of both by batch size, and how many times as fast the second is, with its interval."""
    params = Params.read().benchmark.model_copy(update={"batches": batches(), "seconds": SECONDS})
    row: dict[str, Any] = {"before": before.name, "after": after.name}
    with tempfile.TemporaryDirectory() as scratch:
        sides = {}
        for side, graph in ((BEFORE, before), (AFTER, after)):
            folder = Path(scratch, side)
            blueprint = compile_graph(runtime, graph, folder)
            sides[side] = partial(opened, runtime, folder, blueprint)
        samples = cast(SampleSet, Noise(blueprint.interface))
        for change in race_sides(sides, samples, params, after.name).values():
            times = change.times(params.confidence)
            row[str(change.batch)] = {"ms": [change.before, change.after], "times": times.model_dump()}
    return row


def shapes(runtime: str, graph: Path) -> dict[str, Any]:
    """Return the milliseconds of calls by batch size, several in a turn: the first of each turn, and those after it."""
    row: dict[str, Any] = {"graph": graph.name}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch, "engine")
        blueprint = compile_graph(runtime, graph, folder)
        with opened(runtime, folder, blueprint) as bind:
            calls = {batch: bind(Noise(blueprint.interface).cycled(batch)) for batch in batches()}
            rounds = [
                {batch: [timed(call) for _ in range(CALLS)] for batch, call in calls.items()} for _ in range(TURNS)
            ]
    for batch in batches():
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
    parser.add_argument("what", choices=("race", "shapes"))
    parser.add_argument("runtime", choices=("onnxruntime", "openvino"))
    parser.add_argument("graphs", nargs="+", type=Path, help="for a race before and after, pair by pair")
    options = parser.parse_args()
    graphs: list[Path] = options.graphs
    if options.what == "shapes":
        rows = (shapes(options.runtime, graph) for graph in graphs)
    else:
        rows = (race(options.runtime, *pair) for pair in zip(graphs[::2], graphs[1::2], strict=True))
    for row in rows:
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
