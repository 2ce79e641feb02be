"""Measure a contender in a process of its own: its peak memory and, on a GPU, an engine's compute time. A process that
holds more counts the memory of all of it, and replays CUDA graphs more slowly: see docs/measurements.md. This module is
also the program of that process."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.measuring import EAGER, BenchmarkParams
from enginewright.core.process import end_with_parent
from enginewright.core.text import last_line
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.gpu.nvml import process_megabytes
from enginewright.engine.machine import Machine, Moments
from enginewright.measure.speed_records import Isolated, PeakMemory
from enginewright.measure.timing import warm_up

CALLS = 3
FEEDS = "feeds.npz"


def measure_engine_isolated(
    engine: Path, machine: Path, validation: Path, inference: InferenceParams, params: BenchmarkParams, largest: Feeds
) -> Isolated:
    """Measure the memory on the `largest` feeds, and the compute time on the samples of `validation`."""
    chosen = (inference.model_dump_json(), params.model_dump_json())
    return Isolated.model_validate_json(_run_process("engine", largest, engine, machine, validation, *chosen))


def pytorch_peak_memory(weights: Path, tf32: bool, largest: Feeds, threads: int, device: str) -> PeakMemory:
    """Return the peak memory of the model that the engine was made from."""
    return PeakMemory.model_validate_json(_run_process("pytorch", largest, weights, int(tf32), threads, device))


def _run_process(kind: str, feeds: Feeds, *arguments: object) -> str:
    """Run this module in a new process, and return the last line that it prints. The feeds are in a file, as the list
    of all samples would take memory of its own."""
    with scratch_folder() as scratch:
        np.savez(scratch / FEEDS, list(feeds), *feeds.values())
        command = [sys.executable, "-m", __name__, kind, str(scratch / FEEDS), *map(str, arguments)]
        child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        code, said = child.returncode, last_line(child.stderr) or "no message"
        raise EnginewrightError(f"a contender in a process of its own failed with exit code {code}: {said}")
    return last_line(child.stdout)


def _measure_engine(feeds: str, folder: str, machine: str, validation: str, inference: str, benchmark: str) -> Isolated:
    here, params = Machine.read(Path(machine)), BenchmarkParams.model_validate_json(benchmark)
    with open_engine(Path(folder), here, InferenceParams.model_validate_json(inference)) as engine:
        # Memory comes first, so that it does not include the samples.
        memory = _peak_of(engine.bind(_feeds(feeds)), here.device)
        samples = SampleSet.open(Path(validation)).tuned(engine.record.profile)
        batches = params.batches if here.device == "cuda" else ()
        calls = {batch: _clocked(engine.clock(samples.cycled(batch)), params.seconds) for batch in batches}
    return Isolated(memory=memory, calls=calls)


def _measure_pytorch(feeds: str, folder: str, tf32: str, threads: str, device: str) -> PeakMemory:
    import torch  # here, so that an engine's process does not hold PyTorch

    from enginewright.measure.contenders import pytorch_contender
    from enginewright.model.checkpoint import load_model

    torch.set_num_threads(int(threads))
    model = load_model(Path(folder))
    return _peak_of(pytorch_contender(model, EAGER, device, bool(int(tf32)), _feeds(feeds)), device)


def _feeds(file: str) -> Feeds:
    with np.load(file) as saved:
        names, *arrays = (saved[key] for key in saved.files)
    return dict(zip(names.tolist(), arrays, strict=True))


def _clocked(call: Callable[[], Moments], seconds: float) -> tuple[Moments, ...]:
    """Call for some seconds, and at least once."""
    warm_up(call, seconds / 2)
    deadline = time.perf_counter() + seconds
    moments = [call()]
    while time.perf_counter() < deadline:
        moments.append(call())
    return tuple(moments)


def _peak_of(call: Callable[[], object], device: str) -> PeakMemory:
    """Return the peak memory after a few calls. A contender keeps its GPU memory, so the use at the end is the peak."""
    for _ in range(CALLS):
        call()
    # `ru_maxrss` would include the parent's memory, from before the exec.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
    host = int(status["VmHWM"].split()[0]) / 1000
    return PeakMemory(host=host, device=process_megabytes() if device == "cuda" else None)


if __name__ == "__main__":
    end_with_parent()
    kind, *arguments = sys.argv[1:]
    measure = _measure_engine if kind == "engine" else _measure_pytorch
    print(measure(*arguments).model_dump_json())
