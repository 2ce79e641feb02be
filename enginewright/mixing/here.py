"""This machine, and how it times engines."""

from typing import NamedTuple

from enginewright.core.params.inference import InferenceParams
from enginewright.data.sample_set import SampleSet
from enginewright.engine.machine import Machine


class Here(NamedTuple):
    machine: Machine
    inference: InferenceParams
    samples: SampleSet  # in the sizes that engines are tuned for
    batch: int
