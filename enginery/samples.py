"""A split of the samples on disk, and how the later stages read it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginery.core.files import sha256_of
from enginery.core.records import Manifest
from enginery.preprocessing import Pixels, normalize

PIXELS, MANIFEST = "pixels.npy", "manifest.json"


@dataclass(frozen=True)
class SampleSet:
    """Decoded pixels on disk: a set larger than memory is read batch by batch."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> "SampleSet":
        return cls(folder, Manifest.read(folder / MANIFEST))

    def __len__(self) -> int:
        return len(self.manifest.samples)

    @property
    def pixels(self) -> Pixels:
        """Mapped anew for each reader: what was read through a map counts as the process's memory until it closes."""
        mapped: Pixels = np.load(self.folder / PIXELS, mmap_mode="r")
        return mapped

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """None where the images have none."""
        labels = [sample.label for sample in self.manifest.samples if sample.label is not None]
        return np.array(labels, np.int64) if self.manifest.is_labeled else None

    @property
    def list_sha256(self) -> str:
        """Names the images and their order, but not how they were prepared."""
        return sha256_of([sample.sha256 for sample in self.manifest.samples])

    @property
    def preprocessing_sha256(self) -> str:
        return sha256_of(self.manifest.preprocessing.model_dump())

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples as the model takes them."""
        return normalize(self.pixels[start:stop], self.manifest.preprocessing)

    def read_at(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        return normalize(self.pixels[indices], self.manifest.preprocessing)

    def batches(self, size: int) -> Iterator[NDArray[np.float32]]:
        for start in range(0, len(self), size):
            yield self.read(start, start + size)
