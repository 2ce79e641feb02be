"""Race engines that take bytes with one that takes floats, by the processor time of one thread: computing alone, and
from decoded pixels on. Run `python benchmarks/measuring/pixels.py int8 openvino 1 8 32` after `dvc repro` with
`build: {pixels: null}`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from enginewright.core.files import VALIDATION_SAMPLES, scratch_folder
from enginewright.core.params.all import Params
from enginewright.core.params.build import InferenceParams
from enginewright.data.preprocessing import as_fed, in_layout
from enginewright.data.sample_set import SampleSet
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import Engine, open_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.pixels import take_pixels

SECONDS, LEAST = 12.0, 4


def processor_seconds(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def race(calls: dict[str, Callable[[], object]]) -> str:
    """Return how many times as fast each is as the first, with the milliseconds of that."""
    rng, turns, ends = np.random.default_rng(0), list[dict[str, float]](), time.monotonic() + SECONDS
    while time.monotonic() < ends or len(turns) <= LEAST:
        turns.append({name: processor_seconds(calls[name]) for name in rng.permutation(list(calls)).tolist()})
    first, *others = calls
    times = {name: median(turn[first] / turn[name] for turn in turns[1:]) for name in others}
    milliseconds = 1000 * median(turn[first] for turn in turns[1:])
    return f"{first} {milliseconds:.2f} ms, " + ", ".join(f"{name} {value:.3f}" for name, value in times.items())


def main(precision: str, runtime: str, batches: list[int]) -> None:
    params, samples, machine = Params.read(), SampleSet.open(VALIDATION_SAMPLES), describe_machine(runtime)
    how, graph = samples.manifest.preprocessing, load_graph(Path("artifacts/converted", precision, "model.onnx"))
    assert how
    assert params.build.pixels is None
    with scratch_folder() as folder:
        engines: dict[str, tuple[Engine, SampleSet]] = {}
        for layout in (None, "nchw", "nhwc"):
            build, name = params.build.model_copy(update={"pixels": layout}), layout or "floats"
            save_graph(take_pixels(graph, how, layout), folder / f"{name}.onnx")
            described = DescribedGraph(precision, folder / f"{name}.onnx", samples.manifest)
            build_engine(described, target_of(machine, build.tensorrt), build, folder / name)
            opened = open_engine(folder / name, machine, InferenceParams(threads=1))
            engines[name] = opened, samples.fed_to(build)
        for batch in batches:
            bound = {name: engine.bind(fed.cycled(batch)) for name, (engine, fed) in engines.items()}
            print(f"batch {batch}, computing: {race(bound)}", flush=True)
            images = (samples.pixels_at(number % len(samples)) for number in range(batch))
            decoded = np.stack([in_layout(each, how.layout, "nhwc") for each in images])

            def whole(engine: Engine, layout: str | None, given: np.ndarray = decoded) -> Callable[[], object]:
                if layout == "nhwc":
                    return lambda: engine.run(given)
                return lambda: engine.run(as_fed(in_layout(given, "nhwc", how.layout), how, layout))

            wholes = {name: whole(engine, fed.pixels) for name, (engine, fed) in engines.items()}
            print(f"batch {batch}, whole: {race(wholes)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], list(map(int, sys.argv[3:])))
