"""A histogram of magnitudes that counts a stream of values without knowing their range beforehand."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

CHUNK = 1 << 18  # elements: temporary arrays stay in the processor's cache, and threads seldom wait for Python's lock
LOWEST = np.finfo(np.float32).min
NARROWEST = 2.0**-126  # the narrowest bin whose inverse float32 holds

Count = Callable[[NDArray[np.int32], int], NDArray[np.int64]]  # how often each number below a limit occurs


def count_alone(index: NDArray[np.int32], limit: int) -> NDArray[np.int64]:
    return np.bincount(index, minlength=limit)


def count_beside_others(index: NDArray[np.int32], limit: int) -> NDArray[np.int64]:
    """Count while other threads run: NumPy holds Python's lock meanwhile."""
    import torch

    counts: NDArray[np.int64] = torch.bincount(torch.from_numpy(index), minlength=limit).numpy()
    return counts


@contextmanager
def beside_others() -> Iterator[Count]:
    """Yield what counts in many threads at once, of which none lets PyTorch start more."""
    import torch  # now, as that takes a second

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield count_beside_others
    finally:
        torch.set_num_threads(threads)


class Histogram:
    """Counts of |x| in equal bins from 0. When a value lies beyond the last bin, pairs of bins merge.

    Widths are powers of two, so scaling and merging are exact: the result does not depend on how the stream was cut,
    and memory does not grow with it. There are twice as many bins as asked for, so that at least the asked number lies
    below the largest value.
    """

    def __init__(self, bins: int) -> None:
        self.counts = np.zeros(2 * bins, np.int64)
        self.width = 0.0
        self.amax = 0.0
        self.lowest = 0.0  # the lowest value, 0 if none is negative
        self.peaks: list[float] = []  # the largest magnitude of each sample
        self.channels: NDArray[np.float32] | None = None  # the lowest and the largest number of each, if asked for

    def add(self, values: NDArray[np.float32], count: Count = count_alone) -> None:
        flat = values.reshape(-1)
        if not flat.size:
            return
        rows = values.reshape(len(values), -1) if values.ndim else flat[None]
        lows, highs = rows.min(axis=1), rows.max(axis=1)
        if np.isneginf(lows.min()):  # as masks for attention have it, which others write as the lowest number
            flat = np.maximum(flat, LOWEST)
            lows, highs = np.maximum(lows, LOWEST), np.maximum(highs, LOWEST)
        peaks, lowest = np.maximum(highs, -lows), float(lows.min())
        self.peaks += peaks.tolist()
        largest = float(peaks.max())
        if not np.isfinite(largest):
            raise ValueError("holds NaN or infinity")
        self.amax = max(self.amax, largest)
        self.lowest = min(self.lowest, lowest)
        self._widen(largest)
        inverse = np.float32(1 / self.width if self.width else 0)  # 0 as long as there are only zeros
        scratch, places = np.empty(min(CHUNK, flat.size), np.float32), np.empty(min(CHUNK, flat.size), np.int32)
        for start in range(0, flat.size, CHUNK):
            chunk = flat[start : start + CHUNK]
            scaled, index = scratch[: chunk.size], places[: chunk.size]
            index[:] = np.multiply(np.abs(chunk, out=scaled), inverse, out=scaled)
            self.counts += count(index, len(self.counts))

    def add_channels(self, values: NDArray[np.float32]) -> None:
        """Take the extremes of each channel, which lies along the second axis."""
        others = tuple(axis for axis in range(values.ndim) if axis != 1)
        self._extend(np.stack([values.min(axis=others), values.max(axis=others)]))

    def _extend(self, found: NDArray[np.float32]) -> None:
        known = found if self.channels is None else self.channels
        self.channels = np.stack([np.minimum(known[0], found[0]), np.maximum(known[1], found[1])])

    def merge(self, later: "Histogram") -> None:
        """Take over what another histogram, which is used up, counted after this one: the result is that of one
        histogram that counted all."""
        self._widen(later.amax)
        later._widen(self.amax)
        self.counts = self.counts + later.counts  # a new array, as one from another process is read-only
        self.amax, self.lowest = max(self.amax, later.amax), min(self.lowest, later.lowest)
        self.peaks += later.peaks
        if later.channels is not None:
            self._extend(later.channels)

    def used(self) -> NDArray[np.int64]:
        """Return the bins up to the one that holds the largest value."""
        occupied = np.flatnonzero(self.counts)
        return self.counts[: int(occupied[-1]) + 1] if occupied.size else self.counts[:1]

    def _widen(self, largest: float) -> None:
        if self.width == 0 and largest > 0:
            self.width = max(NARROWEST, 2.0 ** math.frexp(largest / len(self.counts))[1])
        while largest > 0 and largest >= self.width * len(self.counts):
            self._double()

    def _double(self) -> None:
        half = len(self.counts) // 2
        self.counts = np.concatenate([self.counts.reshape(half, 2).sum(axis=1), np.zeros(half, np.int64)])
        self.width *= 2
