"""Time the layers of one engine, in a pass of its own."""

from pathlib import Path

from enginery.core.params.inference import InferenceParams
from enginery.core.record import Record
from enginery.data.sample_set import SampleSet
from enginery.engine.folder import read_engine
from enginery.engine.machine import Machine
from enginery.engine.record import LayerTime
from enginery.engine.runtimes import load_runtime
from enginery.engine.target import require_fits


class Trace(Record):
    """Where the time of one engine goes. Timing layers slows an engine: the sum is no latency."""

    precision: str
    batch: int
    calls: int
    layers: tuple[LayerTime, ...]

    @property
    def milliseconds(self) -> float:
        return sum(layer.milliseconds for layer in self.layers)


CALLS = 48


def trace_engine(folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet) -> Trace:
    """At the batch that the engine is tuned for. It has no layers if the runtime tells no times."""
    record = read_engine(folder)
    require_fits(record.target, machine, folder)
    batch, runtime = record.profile.batch.opt, load_runtime(machine.runtime)
    layers = runtime.trace(folder, record.blueprint, inference, samples.cycled(batch), CALLS)
    told = any(layer.milliseconds for layer in layers)
    return Trace(precision=record.precision, batch=batch, calls=CALLS, layers=tuple(layers) if told else ())
