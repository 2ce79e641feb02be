"""What goes into a model and what comes out: arrays by the names of its inputs and outputs, the batch first."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Run = Callable[[Feeds], Outputs]
Axes = Mapping[int, str]  # which axes of the inputs may vary, by number: the batch, height and width of images
BATCH = "batch"


def resized(feeds: Feeds, axes: Axes, sizes: Mapping[str, int]) -> Feeds:
    """The same images, repeated or cut to another height and width: what is on them does not matter here."""
    for number, axis in axes.items():
        if axis in sizes and axis != BATCH:
            wanted = np.arange(sizes[axis])
            feeds = {name: np.take(array, wanted % array.shape[number], number) for name, array in feeds.items()}
    return feeds
