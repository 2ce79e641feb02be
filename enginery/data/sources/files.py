"""Read images that are single files, either all of them with a label or none."""

from collections.abc import Sequence
from pathlib import Path

from enginery.core.files import sha256
from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import read_pixels
from enginery.data.sources.source import Prepared

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}


class ImageFiles:
    """Image files. `names` are their names in the manifest, and `labels` is None for images without labels."""

    def __init__(
        self,
        files: Sequence[Path],
        names: Sequence[str],
        labels: Sequence[int] | None,
        class_names: tuple[str, ...],
    ) -> None:
        self.class_names = class_names
        self._files = files
        self._names = names
        self._labels = labels

    def __len__(self) -> int:
        return len(self._files)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        file = self._files[index]
        label = None if self._labels is None else self._labels[index]
        return Prepared(Sample(name=self._names[index], sha256=sha256(file), label=label), read_pixels(file, how))
