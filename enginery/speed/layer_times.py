"""Time the layers of one engine, apart from the benchmark."""

from pathlib import Path

from enginery.core.params.inference import InferenceParams
from enginery.data.sample_set import SampleSet
from enginery.engine.folder import read_engine, require_weights
from enginery.engine.machine import Machine
from enginery.engine.runtimes import load_runtime
from enginery.engine.target import require_fits
from enginery.speed.records import Trace

CALLS = 48


def trace_engine(
    folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet, calls: int = CALLS
) -> Trace:
    """Time the layers at the batch size that the engine is tuned for. There are none if the runtime gives no times."""
    record = read_engine(folder)
    require_fits(record.target, machine, folder)
    require_weights(record, folder)
    batch, runtime = record.profile.batch.opt, load_runtime(machine.runtime)
    layers = runtime.trace(folder, record.blueprint, inference, samples.tuned(record.profile).cycled(batch), calls)
    timed = any(layer.milliseconds for layer in layers)
    times = tuple(layers) if timed else ()
    return Trace(precision=record.precision, machine=machine, batch=batch, calls=calls, layers=times)
