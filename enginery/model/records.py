"""The JSON documents that the stages weights, export and reference write."""

from typing import Any

from enginery.core.record import Record
from enginery.graph.check import GraphCheck


class Weights(Record):
    """The model, and where its weights come from; `classes` are those that it was made for, None if nothing says so."""

    model: str
    arguments: dict[str, Any]
    source: str
    classes: int | None
    sha256: str


class Export(Record):
    opset: int
    nodes: dict[str, int]
    against_pytorch: GraphCheck


PYTORCH = "PyTorch"  # who answers in a Reference, but for a model that came as an ONNX file


class Reference(Record):
    """What the model as it came answers. `accuracy` is None here and below where there are no labels or no scores."""

    made_by: str
    outputs: tuple[str, ...]  # each in a file of its own, by its number
    samples: int
    accuracy: float | None
