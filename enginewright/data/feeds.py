"""The arrays that go into a model and come out of it, by the names of its inputs and outputs, the batch first."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Run = Callable[[Feeds], Outputs]
Axes = Mapping[int, str]  # which axes of an input may vary, by number: the batch, height and width of images
AxesOf = Mapping[str, Axes]  # by input


class Places(dict[int, str]):
    """Which values of an input are the sizes of axes, by their places: of an input that holds sizes, and no samples."""


BATCH = "batch"
NO_SAMPLE: Feeds = {}
INPUT_TYPES = ("float32", "int32", "int64", "bool")  # what engines take


def resized(feeds: Feeds, axes_of: AxesOf, sizes: Mapping[str, int], lengths: NDArray[np.int64] | None = None) -> Feeds:
    """Return the samples repeated or cut to other sizes, for uses that do not depend on their content. With `lengths`
    they are texts of so many tokens."""

    def fitted(array: NDArray[Any], axes: Axes) -> NDArray[Any]:
        if isinstance(axes, Places):
            values = [sizes.get(axes.get(place, ""), size) for place, size in enumerate(array.flat)]
            return np.array(values, array.dtype).reshape(array.shape)
        for number, axis in axes.items():
            if axis in sizes and axis != BATCH:
                if lengths is None:
                    array = np.take(array, np.arange(sizes[axis]) % array.shape[number], number)
                else:
                    array = np.take_along_axis(array, _tokens(lengths, sizes[axis]), number)
        return array

    return {name: fitted(array, axes_of[name]) for name, array in feeds.items()}


def _tokens(lengths: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return which tokens of each text make one of `size` tokens, with its first and its last where they are: some
    models look for the token that ends a text, and fail without it or with several."""
    last = np.maximum(lengths, 1)[:, np.newaxis] - 1
    between = np.minimum(1 + np.arange(size - 2) % np.maximum(last - 1, 1), np.maximum(last - 1, 0))
    first = np.zeros_like(last)
    return np.concatenate([first, between, last], axis=1)[:, -size:]
