"""Count the magnitudes of a stream, and choose from the counts the largest one that quantization keeps."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from enginewright.precision.write_int8 import LARGEST

CHUNK = 1 << 18  # elements: temporary arrays stay in the processor's cache, and threads seldom wait for Python's lock
LOWEST = np.finfo(np.float32).min
NARROWEST = 2.0**-126  # the narrowest bin whose inverse float32 holds

Counts = NDArray[np.int64]
Floats = NDArray[np.float64]
Count = Callable[..., Counts]  # np.bincount, or what does the same


@contextmanager
def counting_in_threads() -> Iterator[Count]:
    """Yield what counts in many threads at once, where NumPy holds Python's lock. None lets PyTorch start more."""
    import torch  # now, as that takes a second

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield lambda index, minlength: torch.bincount(torch.from_numpy(index), minlength=minlength).numpy()
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

    def add(self, values: NDArray[np.float32], count: Count = np.bincount) -> None:
        flat = values.reshape(-1)
        if not flat.size:
            return
        rows = values.reshape(len(values), -1) if values.ndim else flat[None]
        lows, highs = rows.min(axis=1), rows.max(axis=1)
        if np.isneginf(lows.min()):  # as masks for attention have it, which others write as the lowest number
            flat = np.maximum(flat, LOWEST)
            lows, highs = np.maximum(lows, LOWEST), np.maximum(highs, LOWEST)
        peaks = np.maximum(highs, -lows)
        largest = float(peaks.max())
        if not np.isfinite(largest):
            raise ValueError("holds NaN or infinity")
        self.peaks += peaks.tolist()
        self.amax, self.lowest = max(self.amax, largest), min(self.lowest, float(lows.min()))
        self._widen(largest)
        inverse = np.float32(1 / self.width if self.width else 0)  # 0 as long as there are only zeros
        scratch, places = np.empty(min(CHUNK, flat.size), np.float32), np.empty(min(CHUNK, flat.size), np.int32)
        for start in range(0, flat.size, CHUNK):
            chunk = flat[start : start + CHUNK]
            scaled, index = scratch[: chunk.size], places[: chunk.size]
            index[:] = np.multiply(np.abs(chunk, out=scaled), inverse, out=scaled)
            self.counts += count(index, minlength=len(self.counts))

    def add_channels(self, values: NDArray[np.float32]) -> None:
        """Take the extremes of each channel, which lies along the second axis."""
        others = (0, *range(2, values.ndim))
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

    def occupied(self) -> NDArray[np.int64]:
        """Return the bins up to the one that holds the largest value."""
        filled = np.flatnonzero(self.counts)
        return self.counts[: int(filled[-1]) + 1] if filled.size else self.counts[:1]

    def _widen(self, largest: float) -> None:
        if self.width == 0 and largest > 0:
            self.width = max(NARROWEST, 2.0 ** math.frexp(largest / len(self.counts))[1])
        while largest > 0 and largest >= self.width * len(self.counts):
            pairs = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts, self.width = np.concatenate([pairs, np.zeros_like(pairs)]), 2 * self.width


TYPICAL = 0.9  # the share of samples that `typical` clips nothing of
COLUMNS_AT_ONCE = 256  # candidates, so that what is known of their levels stays in the processor's cache


def choose_amax(histogram: Histogram, method: str, percentile: float) -> float:
    """Return the largest magnitude that quantization keeps by one of five methods. Larger ones saturate."""
    counts = histogram.occupied()
    if method == "typical" and len(histogram.peaks):  # an activation may be empty, such as boxes of nothing
        return float(np.quantile(histogram.peaks, TYPICAL, method="higher"))
    if len(counts) <= LARGEST or histogram.amax == 0:
        return histogram.amax
    match method:
        case "percentile":
            bins = percentile_bins(counts, percentile)
        case "entropy":
            bins = entropy_bins(counts)
        case "mse":
            bins = mse_bins(counts)
        case _:
            return histogram.amax
    return min(histogram.amax, bins * histogram.width)


def percentile_bins(counts: Counts, percentile: float) -> int:
    """Return the fewest bins that hold the given share of all values."""
    cumulative = np.cumsum(counts)
    return int(np.searchsorted(cumulative, cumulative[-1] * percentile / 100)) + 1


def entropy_bins(counts: Counts) -> int:
    """Return the number of bins whose rounding to int8 loses the least information, by NVIDIA's algorithm.

    For each candidate i, the reference P is the first i bins, with all counts beyond them added to the last one. Q is
    the first i bins without this addition, summed into 127 levels and spread evenly over each level's non-empty bins.
    The candidate with the least Kullback-Leibler divergence of Q from P wins. Q is constant over the non-empty bins of
    a level, so that sum(P log Q) needs only P's sum over the level, from prefix sums.
    """
    values = counts.astype(np.float64)
    values[0] = values[1]  # zeros are exact at any scale, and ReLU makes so many that they would outweigh all others
    prefix, prefix_filled, prefix_entropy = map(_prefix_sums, (values, (values > 0).astype(float), _x_log_x(values)))
    candidates = np.arange(LARGEST + 1, len(values) + 1)
    inside, total = prefix[candidates], prefix[-1]
    folded, last = total - inside, values[candidates - 1]
    # P is the histogram, except that the candidate's last bin also holds what was folded into it.
    p_log_p = prefix_entropy[candidates] - _x_log_x(last) + _x_log_x(last + folded)
    p_log_q = np.empty(len(candidates))
    for start in range(0, len(candidates), COLUMNS_AT_ONCE):
        part = slice(start, start + COLUMNS_AT_ONCE)
        edges = candidates[part, None] * np.arange(LARGEST + 1) // LARGEST
        mass, filled = np.diff(prefix[edges], axis=1), np.diff(prefix_filled[edges], axis=1)
        log_q = np.log(np.divide(mass, filled, out=np.ones_like(mass), where=filled > 0))
        p_log_q[part] = (mass * log_q).sum(axis=1) + folded[part] * log_q[:, -1]
    # Both are normalized: P by the total, Q by the sum of the candidate's bins.
    with np.errstate(divide="ignore"):
        divergence = (p_log_p - p_log_q) / total - np.log(total) + np.log(inside)
    # Folding into an empty bin gives P mass where Q has none.
    impossible = (inside == 0) | ((last == 0) & (folded > 0))
    return int(candidates[np.argmin(np.where(impossible, np.inf, divergence))])


def mse_bins(counts: Counts, candidates: int = 256) -> int:
    """Return the number of bins with the least squared error of rounding to int8 and saturating. All numbers that one
    level stands for have the same rounded value, so that prefix sums of their powers give the error of a level."""
    centers = np.arange(len(counts)) + 0.5
    tried = np.unique(np.linspace(LARGEST + 1, len(counts), candidates).round().astype(int))
    restored = np.arange(LARGEST + 1) * tried[:, None] / LARGEST
    middles = (restored[:, 1:] + restored[:, :-1]) / 2
    ends = np.full((len(tried), 1), len(counts))
    below = np.ceil(middles - 0.5).astype(int)  # how many centers lie below the middle between two levels
    edges = np.concatenate([np.zeros_like(ends), below, ends], axis=1)
    mass, first, second = (np.diff(_prefix_sums(counts * centers**power)[edges], axis=1) for power in range(3))
    errors = (second - 2 * restored * first + restored**2 * mass).sum(axis=1)
    return int(tried[np.argmin(errors)])


def _prefix_sums(values: Floats) -> Floats:
    return np.cumsum(np.concatenate([[0.0], values]), dtype=np.float64)  # cumulative_sum is of NumPy 2.1


def _x_log_x(values: Floats) -> Floats:
    result: Floats = values * np.log(np.where(values > 0, values, 1.0))
    return result
