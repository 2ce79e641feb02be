"""The JSON documents that the stages weights, export and reference write."""

from typing import Any

from enginewright.core.files import Record
from enginewright.graph.onnx_file import GraphCheck


class Weights(Record):
    """The model, and where its weights come from; `classes` is how many it was made for, None if that is unknown."""

    model: str
    arguments: dict[str, Any]
    source: str
    classes: int | None
    sha256: str


class Export(Record):
    opset: int
    nodes: dict[str, int]
    against_pytorch: GraphCheck


class Reference(Record):
    """The outputs of the source model, and what each metric of the task makes of them: none if not measured."""

    made_by: str
    outputs: tuple[str, ...]  # their values are in one file each, which is named by its number
    samples: int
    metrics: dict[str, float]
    by_chance: bool  # whether the first is no better than if samples got each other's answers
    doubt: str | None = None  # a sentence, if it is right far more often for images that are prepared in another way
