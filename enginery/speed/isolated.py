"""A contender in a process that holds nothing else: its peak memory and, on a GPU, an engine's time; also its program.

A process that holds more is charged for all of it, and slows what a CUDA graph replays: see docs/measurements.md.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from enginery.core.errors import EngineryError
from enginery.core.params.benchmark import EAGER, BenchmarkParams
from enginery.core.params.inference import InferenceParams
from enginery.data.feeds import BATCH, Feeds
from enginery.data.sample_set import SampleSet
from enginery.engine.engine import open_engine
from enginery.engine.folder import RECORD
from enginery.engine.gpu.nvml import process_megabytes
from enginery.engine.machine import Machine
from enginery.engine.record import EngineRecord
from enginery.speed.records import Isolated, PeakMemory
from enginery.speed.timing import Contender, take_turn, warm_up

CALLS = 3


def measure_engine_isolated(
    engine: Path, machine: Path, validation: Path, inference: InferenceParams, benchmark: BenchmarkParams
) -> Isolated:
    chosen = (inference.model_dump_json(), benchmark.model_dump_json())
    return Isolated.model_validate_json(_told("engine", engine, machine, validation, *chosen))


def pytorch_peak_memory(weights: Path, engine: Path, batch: int, threads: int, device: str) -> PeakMemory:
    """Of what the engine was made from, on images of its size."""
    return PeakMemory.model_validate_json(_told("pytorch", weights, engine, batch, threads, device))


def _told(*arguments: object) -> str:
    command = [sys.executable, "-m", __name__, *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        last_line = (child.stderr.strip() or "no message").splitlines()[-1]
        raise EngineryError(
            f"a contender in a process of its own failed with exit code {child.returncode}: {last_line}"
        )
    return child.stdout.splitlines()[-1]


def _engine_alone(folder: str, machine: str, validation: str, inference: str, benchmark: str) -> Isolated:
    here, params = Machine.read(Path(machine)), BenchmarkParams.model_validate_json(benchmark)
    with open_engine(Path(folder), here, InferenceParams.model_validate_json(inference)) as engine:
        # First: it is the engine's, and not that of the samples.
        memory = _peak_of(engine.bind(_zeros(engine.record, max(params.batches))), here.device)
        samples = SampleSet.open(Path(validation))
        timed = params.batches if here.device == "cuda" else ()
        compute = {batch: _milliseconds(engine.bind(samples.cycled(batch)), params.seconds) for batch in timed}
    return Isolated(memory=memory, compute=compute)


def _pytorch_memory(folder: str, engine: str, batch: str, threads: str, device: str) -> PeakMemory:
    import torch  # here, so that an engine is not charged for it

    from enginery.model.checkpoint import load_model
    from enginery.speed.contenders import pytorch_contender

    torch.set_num_threads(int(threads))
    record = EngineRecord.read(Path(engine) / RECORD)
    model, feeds = load_model(Path(folder)), _zeros(record, int(batch))
    return _peak_of(pytorch_contender(model, EAGER, device, record.build.tf32, feeds), device)


def _zeros(record: EngineRecord, batch: int) -> Feeds:
    sizes = record.profile.at("opt") | {BATCH: batch}
    return {spec.name: np.zeros(spec.at(sizes), spec.dtype) for spec in record.interface.inputs}


def _milliseconds(contender: Contender, seconds: float) -> float:
    """Of the compute, by the device's own clock."""
    warm_up(contender, seconds / 2)
    return 1000 * median(call.compute for call in take_turn(contender, seconds) if call.compute is not None)


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
    measure = _engine_alone if kind == "engine" else _pytorch_memory
    print(measure(*arguments).model_dump_json())
