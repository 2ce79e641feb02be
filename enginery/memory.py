"""Peak memory of a process that only loads a contender and runs it; also that process's program."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from enginery.core.errors import EngineryError
from enginery.core.params import InferenceParams
from enginery.core.records import Machine, PeakMemory
from enginery.engines import Engine
from enginery.feeds import BATCH
from enginery.gpu.nvml import process_megabytes
from enginery.samples import SampleSet

CALLS = 3


def engine_peak_memory(engine: Path, machine: Path, batch: int, inference: InferenceParams) -> PeakMemory:
    return _measure("engine", engine, machine, batch, inference.model_dump_json())


def pytorch_peak_memory(weights: Path, validation: Path, batch: int, threads: int, device: str) -> PeakMemory:
    return _measure("pytorch", weights, validation, batch, threads, device)


def _measure(*arguments: object) -> PeakMemory:
    """In a fresh process: in a shared one, a contender would be charged for the others."""
    command = [sys.executable, "-m", "enginery.memory", *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        last_line = (child.stderr.strip() or "no message").splitlines()[-1]
        raise EngineryError(f"measuring memory failed with exit code {child.returncode}: {last_line}")
    return PeakMemory.model_validate_json(child.stdout.splitlines()[-1])


def _measure_engine(folder: str, machine: str, batch: str, inference: str) -> PeakMemory:
    here = Machine.read(Path(machine))
    with Engine.open(Path(folder), here, InferenceParams.model_validate_json(inference)) as engine:
        sizes = engine.record.profile.at("opt") | {BATCH: int(batch)}
        inputs = engine.record.interface.inputs
        call = engine.bind({spec.name: np.zeros(spec.at(sizes), spec.dtype) for spec in inputs})
        return _peak_of(call, here.device)


def _measure_pytorch(folder: str, validation: str, batch: str, threads: str, device: str) -> PeakMemory:
    import torch  # here, so that an engine is not charged for it

    from enginery.contenders import pytorch_contender
    from enginery.models import load_model

    torch.set_num_threads(int(threads))
    feeds = SampleSet.open(Path(validation)).cycled(int(batch))
    return _peak_of(pytorch_contender(load_model(Path(folder)), "eager", device, True, feeds), device)


def _peak_of(call: Callable[[], object], device: str) -> PeakMemory:
    """What a contender takes on a GPU it keeps, so that the end is the peak; on the host that is not so."""
    for _ in range(CALLS):
        call()
    return PeakMemory(host=_high_water_mark(), device=process_megabytes() if device == "cuda" else None)


def _high_water_mark() -> float:
    """Of this process since it started, in MB. Not ru_maxrss: that includes the parent, before the exec."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1000


if __name__ == "__main__":
    kind, *arguments = sys.argv[1:]
    measure = _measure_engine if kind == "engine" else _measure_pytorch
    print(measure(*arguments).model_dump_json())
