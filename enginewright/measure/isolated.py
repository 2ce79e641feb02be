"""Measure a contender in a process of its own: its peak memory and, on a GPU, an engine's compute time. A process that
holds more counts the memory of all of it, and replays CUDA graphs more slowly: see docs/measurements.md."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from enginewright.core.apart import run_apart
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.measuring import EAGER, BenchmarkParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.gpu.nvml import process_megabytes
from enginewright.engine.machine import Machine, Moments
from enginewright.measure.speed_records import Isolated, PeakMemory
from enginewright.measure.timing import warm_up

CALLS = 3
Result = TypeVar("Result")


def measure_engine_isolated(
    engine: Path, machine: Path, validation: Path, inference: InferenceParams, params: BenchmarkParams, largest: Feeds
) -> Isolated:
    """Measure the memory on the `largest` feeds, and the compute time on the samples of `validation`."""
    return _isolated(_measure_engine, largest, engine, machine, validation, inference, params)


def pytorch_peak_memory(weights: Path, tf32: bool, largest: Feeds, threads: int, device: str) -> PeakMemory:
    """Return the peak memory of the model that the engine was made from."""
    return _isolated(_measure_pytorch, largest, weights, tf32, threads, device)


def _isolated(measure: Callable[..., Result], feeds: Feeds, *arguments: object) -> Result:
    """Call the function in a new process. The feeds are in a file, as the list of all samples would take memory of its
    own, and so would what `run_apart` sends."""
    with scratch_folder() as scratch:
        file = scratch / "feeds.npz"
        np.savez(file, list(feeds), *feeds.values())
        return run_apart("a contender in a process of its own", measure, file, *arguments, quiet=True)


def _measure_engine(
    feeds: Path, folder: Path, machine: Path, validation: Path, inference: InferenceParams, params: BenchmarkParams
) -> Isolated:
    here = Machine.read(machine)
    with open_engine(folder, here, inference) as engine:
        # Memory comes first, so that it does not include the samples.
        memory = _peak_of(engine.bind(_read(feeds)), here.device)
        samples = SampleSet.open(validation).tuned(engine.record.profile)
        batches = params.batches if here.device == "cuda" else ()
        calls = {batch: _clocked(engine.clock(samples.cycled(batch)), params.seconds) for batch in batches}
    return Isolated(memory=memory, calls=calls)


def _measure_pytorch(feeds: Path, weights: Path, tf32: bool, threads: int, device: str) -> PeakMemory:
    import torch  # here, so that an engine's process does not hold PyTorch

    from enginewright.measure.contenders import pytorch_contender
    from enginewright.model.checkpoint import load_model

    torch.set_num_threads(threads)
    return _peak_of(pytorch_contender(load_model(weights), EAGER, device, tf32, _read(feeds)), device)


def _read(feeds: Path) -> Feeds:
    with np.load(feeds) as saved:
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
