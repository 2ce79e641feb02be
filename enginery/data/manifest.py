"""The list of a split's samples: manifest.json."""

from enginery.core.params.preprocessing import Preprocessing
from enginery.core.record import Record


class Sample(Record):
    name: str
    sha256: str
    label: int | None


class Manifest(Record):
    """The samples of one split, in order, with the inputs of the model that they are for and how they are prepared.

    `task` says what the model does with them, `class_names` is empty if unknown, and `preprocessing` is None for
    arrays, which are fed as they are.
    """

    task: str
    source: str
    inputs: tuple[str, ...]
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]

    @property
    def is_labeled(self) -> bool:
        return all(sample.label is not None for sample in self.samples)
