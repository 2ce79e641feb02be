"""The 1,797 handwritten digits of 8 by 8 pixels that come with scikit-learn."""

import numpy as np

from enginewright.data.sources.arrays import ImageArray


def open_digits() -> ImageArray:
    from sklearn.datasets import load_digits  # takes a second to import, and no other source needs it

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    return ImageArray("digits", pixels, digits.target.tolist(), tuple(map(str, digits.target_names)), digits=4)
