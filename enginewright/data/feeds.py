"""The arrays that go into a model and come out of it, by the names of its inputs and outputs, the batch first."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Feeds = Mapping[str, NDArray[Any]]
Outputs = dict[str, NDArray[Any]]
Run = Callable[[Feeds], Outputs]
Axes = Mapping[int, str]  # which axes of an input may vary, by number: the batch, height and width of images
AxesOf = Mapping[str, Axes]  # by input
Places = NDArray[np.int64]  # which samples of a set


class HeldSizes(dict[int, str]):
    """Which values of an input are the sizes of axes, by their places: of an input that holds sizes, and no samples."""


BATCH = "batch"
NO_SAMPLE: Feeds = {}
INPUT_TYPES = ("float32", "int32", "int64", "bool")  # what engines take


def resized(feeds: Feeds, axes_of: AxesOf, sizes: Mapping[str, int], lengths: NDArray[np.int64] | None = None) -> Feeds:
    """Return the samples repeated or cut to other sizes, for uses that do not depend on their content. With `lengths`
    they are texts of so many tokens."""

    def fitted(array: NDArray[Any], axes: Axes) -> NDArray[Any]:
        if isinstance(axes, HeldSizes):
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


def save_arrays(file: Path | IO[bytes], arrays: Feeds) -> None:
    """Write arrays with their names, any of which may be what NumPy's function calls a parameter."""
    np.savez(file, np.array(list(arrays)), *arrays.values())


def load_arrays(file: Path | IO[bytes]) -> Outputs:
    with np.load(file) as held:
        names, *arrays = (held[key] for key in held.files)
    return dict(zip(names.tolist(), arrays, strict=True))


def middle_of(drawn: Any, confidence: float) -> tuple[float, float]:
    """Return the ends of the interval that holds this share of what was drawn, in its middle."""
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


# How far outputs are from those that they should be. NaN and infinity are counted elsewhere, and here zero.

Values = NDArray[Any]
TINY = 1e-12  # so that nothing is divided by zero
MOST_NUMBERS_IN_A_BLOCK = 2**21  # several copies of a block in double precision are in memory at once


def finite(values: Values) -> NDArray[np.float64]:
    """Return the values in double precision, with zero in place of NaN and infinity."""
    return np.where(np.isfinite(values), values, 0).astype(np.float64)


def blocks(values: Values) -> list[slice]:
    """Cut the samples into blocks of at least one sample that take a bounded part of memory: outputs may be mapped
    files that are larger than memory."""
    samples = max(1, MOST_NUMBERS_IN_A_BLOCK * len(values) // max(values.size, 1))
    return [slice(start, start + samples) for start in range(0, len(values), samples)]


def relative_error(difference: ArrayLike, expected: ArrayLike, least: float = TINY) -> float:
    """Return the size of a difference, as it is with NaN, as a share of the size of what is expected."""
    return float(np.linalg.norm(difference)) / max(float(np.linalg.norm(expected)), least)


def norms(values: Values) -> Values:
    """Return the norm of each sample, as it is with NaN."""
    return np.asarray(np.linalg.norm(values.reshape(len(values), -1), axis=1))


def errors_of_samples(expected: Outputs, got: Outputs) -> NDArray[np.float64]:
    """Return the relative error of each sample over all outputs together."""
    pairs = [(values, got[name]) for name, values in expected.items()]
    differences = np.linalg.norm([norms_of_samples(exact, found) for exact, found in pairs], axis=0)
    sizes = np.linalg.norm([norms_of_samples(exact) for exact, _ in pairs], axis=0)
    return np.asarray(differences / np.maximum(sizes, TINY))


def norms_of_samples(values: Values, minus: Values | None = None) -> NDArray[np.float64]:
    """Return the norm of each sample, or of its difference to the same sample of `minus`."""
    parts = (finite(values[part]) - (0 if minus is None else finite(minus[part])) for part in blocks(values))
    return np.concatenate([norms(part) for part in parts])


def cosines_of_samples(expected: Values, got: Values) -> NDArray[np.float64]:
    """Return the cosine of each sample of an output."""
    return np.concatenate([cosines(finite(expected[part]), finite(got[part])) for part in blocks(expected)])


def cosines(expected: NDArray[np.float64], got: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cosine of each sample. Two zero vectors agree, a zero and a non-zero one do not."""
    a, b = (values.reshape(len(values), -1) for values in (expected, got))
    sizes = norms(a), norms(b)
    found = (a * b).sum(axis=1) / np.maximum(sizes[0] * sizes[1], TINY)
    return np.where(np.maximum(*sizes) < TINY, 1.0, found)
