"""Time the layers of one engine, apart from the benchmark."""

from pathlib import Path

from enginewright.core.params.inference import InferenceParams
from enginewright.data.sample_set import SampleSet
from enginewright.engine.folder import read_engine, require_weights
from enginewright.engine.machine import Machine
from enginewright.engine.record import LayerTime
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.target import require_fits
from enginewright.speed.records import Trace

CALLS = 48


def trace_engine(folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet) -> Trace:
    """Time the layers at the batch size that the engine is tuned for. There are none if the runtime gives no times."""
    record, layers = read_engine(folder), time_layers(folder, machine, inference, samples, CALLS)
    times = tuple(layers) if any(layer.milliseconds for layer in layers) else ()
    batch = record.profile.batch.opt
    return Trace(precision=record.precision, machine=machine, batch=batch, calls=CALLS, layers=times)


def time_layers(
    folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet, calls: int
) -> list[LayerTime]:
    """Return the layers with their times, which may all be 0."""
    record = read_engine(folder)
    require_fits(record.target, machine, folder)
    require_weights(record, folder)
    feeds = samples.tuned(record.profile).cycled(record.profile.batch.opt)
    return load_runtime(machine.runtime).trace(folder, record.blueprint, inference, feeds, calls)
