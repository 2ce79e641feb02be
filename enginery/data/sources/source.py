"""The interface of each source of images."""

from typing import NamedTuple, Protocol

from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import Pixels


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels


class Source(Protocol):
    """A source of images. `class_names` is empty if neither labels nor the user name the classes."""

    class_names: tuple[str, ...]

    def __len__(self) -> int: ...
    def prepare(self, index: int, how: Preprocessing) -> Prepared: ...
