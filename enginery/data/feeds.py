"""The arrays that go into a model and come out of it, by the names of its inputs and outputs, the batch first."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Run = Callable[[Feeds], Outputs]
Axes = Mapping[int, str]  # which axes of an input may vary, by number: the batch, height and width of images
AxesOf = Mapping[str, Axes]  # by input
BATCH = "batch"
INPUT_TYPES = ("float32", "int32", "int64", "bool")  # what engines take


def scores_among(shapes: Mapping[str, Sequence[object]], classes: int, asked: str | None) -> str | None:
    """Return the output with a score for each class: the one the user asks for, or the only one of such a shape.

    Return None if several outputs have such a shape, since boxes of four numbers or centres of two look like scores.
    """
    candidates = [name for name in shaped_as_scores(shapes, classes) if not asked or name == asked]
    return candidates[0] if len(candidates) == 1 else None


def shaped_as_scores(shapes: Mapping[str, Sequence[object]], classes: int) -> list[str]:
    """Return the outputs with a column for each class, or with two or more columns if `classes` is 0, for unknown."""
    return [
        name
        for name, shape in shapes.items()
        if len(shape) == 2 and isinstance(shape[1], int) and shape[1] > 1 and classes in (0, shape[1])
    ]


def resized(feeds: Feeds, axes_of: AxesOf, sizes: Mapping[str, int]) -> Feeds:
    """Return the samples repeated or cut to other sizes, for uses that do not depend on their content."""

    def fitted(array: NDArray[Any], axes: Axes) -> NDArray[Any]:
        for number, axis in axes.items():
            if axis in sizes and axis != BATCH:
                array = np.take(array, np.arange(sizes[axis]) % array.shape[number], number)
        return array

    return {name: fitted(array, axes_of[name]) for name, array in feeds.items()}
