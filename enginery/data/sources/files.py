"""Read images that are single files, either all of them with a label or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginery.core.files import sha256
from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import Pixels, decode, read_pixels
from enginery.data.sources.truth import Truths

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels
    truth: NDArray[np.generic] | None = None


@dataclass(frozen=True)
class ImageFiles:
    """Image files. `names` are their names in the manifest, and `labels` is None for images without labels."""

    files: Sequence[Path]
    names: Sequence[str]
    labels: Sequence[int] | None
    class_names: tuple[str, ...]
    truths: Truths | None = None

    def __len__(self) -> int:
        return len(self.files)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        file, label = self.files[index], None if self.labels is None else self.labels[index]
        sample = Sample(name=self.names[index], sha256=sha256(file), label=label)
        if self.truths is None:
            return Prepared(sample, read_pixels(file, how))
        return Prepared(sample, read_pixels(file, how), self.truths.prepare(index, how, decode(file).size))
