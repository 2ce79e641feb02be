"""Where the time of one engine goes, layer by layer: a pass of its own, which no latency is taken from."""

from pathlib import Path

from enginery.core.params import InferenceParams
from enginery.core.records import Machine, Trace
from enginery.engines import checked_record
from enginery.runtimes import load_runtime
from enginery.samples import SampleSet

CALLS = 48


def trace_engine(folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet) -> Trace:
    """At the batch that the engine is tuned for. It has no layers if the runtime tells no times."""
    record = checked_record(folder, machine)
    batch, runtime = record.profile.batch.opt, load_runtime(machine.runtime)
    layers = runtime.trace(folder, record.blueprint, inference, samples.cycled(batch), CALLS)
    told = any(layer.milliseconds for layer in layers)
    return Trace(precision=record.precision, batch=batch, calls=CALLS, layers=tuple(layers) if told else ())
