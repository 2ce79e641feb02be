"""What a source of images is to those who use it."""

from typing import NamedTuple, Protocol

from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import Pixels


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels


class Source(Protocol):
    """`class_names` is empty where neither labels nor the user say what the classes are."""

    class_names: tuple[str, ...]

    def __len__(self) -> int: ...
    def prepare(self, index: int, how: Preprocessing) -> Prepared: ...
