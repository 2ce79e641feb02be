"""The 1,797 handwritten digits of 8 by 8 pixels that come with scikit-learn."""

import hashlib

import numpy as np
from PIL import Image

from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import pixels_of
from enginery.data.sources.source import Prepared


class Digits:
    def __init__(self) -> None:
        from sklearn.datasets import load_digits  # takes a second to import, and no other source needs it

        digits = load_digits()
        self.class_names = tuple(str(name) for name in digits.target_names)
        self._pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
        self._labels = digits.target

    def __len__(self) -> int:
        return len(self._labels)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        pixels = self._pixels[index]
        sample = Sample(
            name=f"digits/{index:04d}",
            sha256=hashlib.sha256(pixels.tobytes()).hexdigest(),
            label=int(self._labels[index]),
        )
        return Prepared(sample, pixels_of(Image.fromarray(pixels), how))
