"""Peak memory of a process that only loads a contender and runs it; also that process's program."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from enginery.core.errors import EngineryError
from enginery.core.records import EngineRecord, Weights
from enginery.engines import RECORD, Engine

CALLS = 3


def engine_peak_megabytes(engine: Path, batch: int, threads: int) -> float:
    return _measure("engine", engine, batch, threads)


def pytorch_peak_megabytes(weights: Path, batch: int, threads: int, size: int, device: str) -> float:
    return _measure("pytorch", weights, batch, threads, size, device)


def _measure(*arguments: object) -> float:
    """In a fresh process: in a shared one, a contender would be charged for the others."""
    command = [sys.executable, "-m", "enginery.memory", *map(str, arguments)]
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        last_line = (child.stderr.strip() or "no message").splitlines()[-1]
        raise EngineryError(f"measuring memory failed with exit code {child.returncode}: {last_line}")
    return float(child.stdout.split()[-1])


def _engine(folder: Path, batch: int, threads: int) -> Callable[[], object]:
    record = EngineRecord.read(folder / RECORD)
    engine = Engine.open(folder, record.machine, threads)
    shapes = {spec.name: (batch, *spec.shape[1:]) for spec in record.inputs}
    return engine.bind({spec.name: np.zeros(shapes[spec.name], spec.dtype) for spec in record.inputs})


def _pytorch(folder: Path, batch: int, threads: int, size: int, device: str) -> Callable[[], object]:
    import torch  # here, so that an engine is not charged for it

    from enginery.contenders import pytorch_contender
    from enginery.models import load_model

    torch.set_num_threads(threads)
    record = Weights.read(folder / "weights.json")
    model = load_model(record.model, record.classes, folder / "weights.pt")
    return pytorch_contender(model, "eager", np.zeros((batch, 3, size, size), np.float32), device)


def _high_water_mark() -> float:
    """Of this process since it started, in MB. Not ru_maxrss: that includes the parent, before the exec."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1000


def _main(kind: str, folder: str, batch: str, threads: str, size: str = "", device: str = "") -> None:
    if kind == "engine":
        call = _engine(Path(folder), int(batch), int(threads))
    else:
        call = _pytorch(Path(folder), int(batch), int(threads), int(size), device)
    for _ in range(CALLS):
        call()
    print(_high_water_mark())


if __name__ == "__main__":
    _main(*sys.argv[1:])
