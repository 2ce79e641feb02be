"""Compare Enginewright's latency with that of OpenVINO's own benchmark_app, on the same typed ONNX file.

Enginewright times the engine that the pipeline built from the file, with the code of the benchmark stage. benchmark_app
compiles the file with the same settings, because it cannot load the engine itself (2026.4.1 refuses every blob).
Threads, batch profile, precision hint and kind of input are the same, and the input is placed once, before the timing.
Measurements come in pairs, each in its own process, and the order alternates. The result is the median over the pairs
of Enginewright's median latency divided by benchmark_app's. Drift between pairs cancels within one.

    python benchmarks/measuring/benchmark_app.py --engine artifacts/engines/int8

Expect a little over 1 where an inference is short: Enginewright's time includes the call from Python, about 15
microseconds, and benchmark_app's does not. The exit code is 1, with a sentence, where the two differ by more than 3 %.
"""

import argparse
import multiprocessing
import re
import subprocess
import sys
import sysconfig
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from enginewright.core.files import sha256
from enginewright.core.params.build import InferenceParams
from enginewright.data.feeds import BATCH
from enginewright.engine.engine import open_engine
from enginewright.engine.record import RECORD, EngineRecord
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.interface import TensorSpec
from enginewright.measure.timing import median_seconds, race

TOLERANCE = 0.03
APP = Path(sysconfig.get_path("scripts"), "benchmark_app")
TYPES = {"float32": "f32", "uint8": "u8"}


@dataclass(frozen=True)
class Setting:
    engine: Path
    onnx: Path
    batch: int
    threads: int
    seconds: int


def enginewright_milliseconds(setting: Setting) -> float:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(time_engine, setting).result()


def time_engine(setting: Setting) -> float:
    record = EngineRecord.read(setting.engine / RECORD)
    (spec,) = record.interface.inputs
    rng = np.random.default_rng(0)
    # benchmark_app fills its inputs like this.
    images = rng.uniform(0, 255, shape_of(spec, record, setting.batch)).astype(spec.dtype)
    inference = InferenceParams(threads=setting.threads, cuda_graph=False)
    with open_engine(setting.engine, describe_machine("openvino"), inference) as engine:
        point = {"engine": engine.bind({spec.name: images})}
        # The pace is constant, so that all rounds count: benchmark_app counts all of its calls too.
        (timings,) = race([point], setting.seconds, lambda: 1.0, rng, f"batch {setting.batch}")
    return median_seconds(timings.calls_of("engine")) * 1000


def shape_of(spec: TensorSpec, record: EngineRecord, batch: int) -> tuple[int, ...]:
    return spec.at(record.profile.at("opt") | {BATCH: batch})


def app_milliseconds(setting: Setting) -> float:
    record = EngineRecord.read(setting.engine / RECORD)
    (spec,) = record.interface.inputs
    shape, ranges = shape_of(spec, record, setting.batch), record.profile.ranges
    bounds = (f"{ranges[axis].min}..{ranges[axis].max}" if isinstance(axis, str) else axis for axis in spec.shape)
    command = [
        *(APP, "-m", setting.onnx, "-d", "CPU", "-t", setting.seconds, "-nthreads", setting.threads),
        *("-shape", f"{spec.name}[{','.join(map(str, bounds))}]"),
        *("-data_shape", f"{spec.name}[{','.join(map(str, shape))}]"),
        *("-ip", TYPES[spec.dtype], "-infer_precision", "f32"),
        *("-api", "sync", "-hint", "none", "-nireq", 1, "-nstreams", 1, "-inference_only", "true"),
    ]
    app = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    found = re.search(r"Median:\s+([\d.]+) (us|ms)", app.stdout)
    if app.returncode or not found:
        sys.exit(f"benchmark_app failed with exit code {app.returncode}: {(app.stdout + app.stderr)[-2000:]}")
    return float(found[1]) / (1000 if found[2] == "us" else 1)


def compare(setting: Setting, app_first: bool) -> tuple[float, float]:
    """Return the milliseconds of Enginewright and of benchmark_app."""
    sides = (enginewright_milliseconds, app_milliseconds)
    measured = {side: side(setting) for side in (reversed(sides) if app_first else sides)}
    return measured[enginewright_milliseconds], measured[app_milliseconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", type=Path, default=Path("artifacts/engines/int8"))
    parser.add_argument("--converted", type=Path, default=Path("artifacts/converted"), help="the typed ONNX files")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=int, default=3, help="how long one measurement takes")
    parser.add_argument("--repetitions", type=int, default=7, help="pairs of measurements for each batch size")
    parser.add_argument("--threads", type=int, default=0, help="0 means as many as there are cores")
    options = parser.parse_args()

    record = EngineRecord.read(options.engine / RECORD)
    onnx = options.converted / record.precision / "model.onnx"
    if record.target.runtime != "openvino":
        sys.exit(f"{options.engine} is an engine of {record.target.runtime}, and benchmark_app runs OpenVINO only")
    if not onnx.exists() or sha256(onnx) != record.onnx_sha256:
        sys.exit(f"{options.engine} was not built from {onnx}: run `dvc repro`")
    threads = options.threads or describe_machine("openvino").cores

    print(f"{options.engine}, {threads} threads, {options.repetitions} pairs of {options.seconds} s\n")
    print("| batch | Enginewright, ms | benchmark_app, ms | median ratio | ratios |")
    print("|---|---|---|---|---|", flush=True)
    misses = []
    for batch in options.batches:
        setting = Setting(options.engine, onnx, batch, threads, options.seconds)
        pairs = [compare(setting, app_first=bool(number % 2)) for number in range(options.repetitions)]
        ours, theirs = zip(*pairs, strict=True)
        ratios = [mine / other for mine, other in pairs]
        print(
            f"| {batch} | {median(ours):.3f} | {median(theirs):.3f} | {median(ratios):.3f} "
            f"| {min(ratios):.3f} to {max(ratios):.3f} |",
            flush=True,
        )
        if abs(median(ratios) - 1) > TOLERANCE:
            misses.append(f"at batch {batch} the ratio is {median(ratios):.3f}")
    if misses:
        sys.exit(f"Target missed: {', '.join(misses)}; it may differ from 1 by {TOLERANCE:.0%}.")


if __name__ == "__main__":
    main()
