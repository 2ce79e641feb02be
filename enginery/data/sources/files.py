"""Read images that are single files, either all of them with a label or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from enginery.core.files import sha256
from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import Pixels, read_pixels

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels


@dataclass(frozen=True)
class ImageFiles:
    """Image files. `names` are their names in the manifest, and `labels` is None for images without labels."""

    files: Sequence[Path]
    names: Sequence[str]
    labels: Sequence[int] | None
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        file, label = self.files[index], None if self.labels is None else self.labels[index]
        return Prepared(Sample(name=self.names[index], sha256=sha256(file), label=label), read_pixels(file, how))
