"""Where the time of one engine goes, layer by layer: a pass of its own, which no latency is taken from."""

from pathlib import Path

import numpy as np

from enginery.core.params import InferenceParams
from enginery.core.records import EngineRecord, Machine, Trace
from enginery.engines import RECORD, require_whole
from enginery.graphs import INPUT
from enginery.runtimes import load_runtime
from enginery.samples import SampleSet
from enginery.targets import require_fits

CALLS = 48


def trace_engine(folder: Path, machine: Machine, inference: InferenceParams, samples: SampleSet) -> Trace:
    """At the batch that the engine is tuned for. It has no layers if the runtime tells no times."""
    record = EngineRecord.read(folder / RECORD)
    require_whole(record, folder)
    require_fits(record.target, machine, folder)
    batch = record.profile.opt
    images = samples.read_at(np.arange(batch) % len(samples))
    layers = load_runtime(machine.runtime).trace(folder, record.build, inference, {INPUT: images}, CALLS)
    told = any(layer.milliseconds for layer in layers)
    return Trace(precision=record.precision, batch=batch, calls=CALLS, layers=tuple(layers) if told else ())
