"""What goes into a model and what comes out: arrays by the names of its inputs and outputs, the batch first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Run = Callable[[Feeds], Outputs]
Axes = Mapping[int, str]  # which axes of the inputs may vary, by number: the batch, height and width of images
BATCH = "batch"
FED = ("float32", "int32", "int64", "bool")  # what engines take


def scores_among(shapes: Mapping[str, Sequence[object]], classes: int, asked: str | None) -> str | None:
    """The output with a score for each class: the one that the user names, or the only one of such a shape; or none.

    Another output of the same shape leaves it open: boxes of four, or the centre of two, look like scores.
    """
    wide = wide_as_scores(shapes, classes)
    if asked:
        return asked if asked in wide else None
    return wide[0] if len(wide) == 1 else None


def wide_as_scores(shapes: Mapping[str, Sequence[object]], classes: int) -> list[str]:
    """The outputs with a column for each class; where nothing says how many there are, with two or more."""
    return [
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 1 and classes in (0, shape[1])
    ]


def resized(feeds: Feeds, axes: Axes, sizes: Mapping[str, int]) -> Feeds:
    """The same images, repeated or cut to another height and width: what is on them does not matter here."""
    for number, axis in axes.items():
        if axis in sizes and axis != BATCH:
            wanted = np.arange(sizes[axis])
            feeds = {name: np.take(array, wanted % array.shape[number], number) for name, array in feeds.items()}
    return feeds
