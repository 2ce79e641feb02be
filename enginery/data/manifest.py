"""The list of a split's samples: manifest.json."""

from enginery.core.params.preprocessing import Preprocessing
from enginery.core.record import Record


class Sample(Record):
    name: str
    sha256: str
    label: int | None


class Manifest(Record):
    """One split of the samples: which, in which order, for which inputs of the model, prepared how.

    `class_names` is empty if not known. `preprocessing` is None for arrays, which are fed as they came.
    """

    source: str
    inputs: tuple[str, ...]
    preprocessing: Preprocessing | None
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]

    @property
    def is_labeled(self) -> bool:
        return all(sample.label is not None for sample in self.samples)
