"""Time TensorRT's builds of graphs in several ways, and race each engine with that of the first way.

    python benchmarks/gpu/build_times.py build-times.jsonl artifacts/converted/*/model.onnx

Run it in a project: `build` of its params.yaml counts. Each build has a process of its own, as in the stage. A row has
the seconds, those of TensorRT's start in such a process, and how many times as fast the engine computes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, cast

from graphs import Noise, opened

from enginewright.core.params.all import Params
from enginewright.core.params.build import BuildParams
from enginewright.data.sample_set import SampleSet
from enginewright.engine.record import Speedup
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.interface import Blueprint
from enginewright.graph.read_interface import read_blueprint
from enginewright.measure.comparison import combine
from enginewright.measure.race import AFTER, BEFORE, race_sides
from enginewright.measure.timing import whole_machine
from enginewright.pipeline.tune import median_compute

RUNTIME, START = "tensorrt", "start"
SECONDS = 1.0  # of a race, for each side and batch size


def start() -> None:
    library: Any = load_runtime(RUNTIME)
    library.trt.Builder(library.log)


def ways(asked: BuildParams) -> Iterator[tuple[str, BuildParams, str]]:
    """Yield each way with the name of its cache; graphs have one together where the name has no {}."""
    yield "an empty cache each", asked, "{}"
    yield "that cache again", asked, "{}"
    yield "one cache for all", asked, "shared"
    yield "no cache", asked.with_option("timing_cache", False), "none"
    yield "kernels timed once", asked.with_option("avg_timing_iterations", 1), "once-{}"
    if asked.profiles:
        yield "one profile", asked.model_copy(update={"profiles": ()}), "one-{}"


def build(graph: Path, asked: BuildParams, folder: Path) -> tuple[Blueprint, float]:
    folder.mkdir(parents=True)
    blueprint, started = read_blueprint(graph, asked), time.perf_counter()
    load_runtime(RUNTIME).compile(graph, blueprint, folder)
    return blueprint, time.perf_counter() - started


def speed(one: tuple[Path, Blueprint], other: tuple[Path, Blueprint], params: Params) -> Speedup:
    sides = {side: partial(opened, RUNTIME, *each) for side, each in ((BEFORE, one), (AFTER, other))}
    asked = params.benchmark.model_copy(update={"seconds": SECONDS})
    samples = cast(SampleSet, Noise(one[1].interface))
    return combine([*race_sides(sides, samples, asked, "build times", median_compute).values()]).times(asked.confidence)


def main() -> None:
    rows, graphs, params = Path(sys.argv[1]), [Path(each) for each in sys.argv[2:]], Params.read()
    with tempfile.TemporaryDirectory() as scratch, whole_machine("build times"), rows.open("a") as file:

        def tell(**row: Any) -> None:
            print(json.dumps(row), flush=True)
            file.write(json.dumps(row) + "\n")

        started = time.perf_counter()
        subprocess.run([sys.executable, __file__, START], check=True)
        tell(how="TensorRT's start", seconds=round(time.perf_counter() - started, 2))
        first: dict[Path, tuple[Path, Blueprint]] = {}
        for number, (how, asked, cache) in enumerate(ways(params.build)):
            for graph in graphs:
                os.environ["XDG_CACHE_HOME"] = str(Path(scratch, "caches", cache.format(graph.parent.name)))
                folder = Path(scratch, str(number), graph.parent.name)
                blueprint, seconds = build(graph, asked, folder)
                times = speed(first[graph], (folder, blueprint), params).in_figures() if graph in first else "the first"
                first.setdefault(graph, (folder, blueprint))
                tell(graph=graph.parent.name, how=how, seconds=round(seconds, 1), speed=times)
        os.environ["XDG_CACHE_HOME"] = str(Path(scratch, "caches", "beside"))
        started = time.perf_counter()
        with ThreadPoolExecutor(len(graphs)) as pool:
            places = [Path(scratch, "beside", graph.parent.name) for graph in graphs]
            [*pool.map(build, graphs, [params.build] * len(graphs), places)]
        tell(how="all side by side, an empty cache", seconds=round(time.perf_counter() - started, 1))


if __name__ == "__main__":
    start() if sys.argv[1:] == [START] else main()
