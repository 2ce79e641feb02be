"""The list of a split's samples: manifest.json."""

import operator
from dataclasses import dataclass

from pydantic import ConfigDict, Field

from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.params.text import TextPreprocessing
from enginewright.core.record import Record


@dataclass(frozen=True, slots=True)
class Sample:
    """One of maybe millions: as a Record it would take twice the memory."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    sha256: str
    label: int | None


class PreparedTexts(Record):
    """The tokens of texts: by the tokenizer of this hash, whose largest id is `vocabulary` - 1. `cut` is how many
    of the texts were longer than a model may get, and `together` how many texts are one input."""

    how: TextPreprocessing
    tokenizer_sha256: str
    vocabulary: int
    cut: int
    together: int


class Manifest(Record):
    """The samples of one split, in order, with the inputs of the model that they are for and how they are prepared.

    `task` says what the model does with them, `class_names` is empty if unknown, and `preprocessing` is None for
    arrays, which are fed as they are; `text` is for texts. `values` are those of inputs that hold sizes, and no row for
    each sample.
    """

    task: str
    source: str
    inputs: tuple[str, ...]
    preprocessing: Preprocessing | None
    text: PreparedTexts | None = None
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]
    values: dict[str, int | tuple[int, ...]] = Field(default_factory=dict, exclude_if=operator.not_)

    @property
    def kind(self) -> str:
        """Return what the samples are called."""
        if self.text:
            return "texts"
        return "images" if self.preprocessing else "samples"

    @property
    def is_labeled(self) -> bool:
        return all(sample.label is not None for sample in self.samples)
