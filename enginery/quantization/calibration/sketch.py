"""A histogram made small enough to be kept and looked at."""

import numpy as np

from enginery.core.record import Record
from enginery.quantization.calibration.histogram import Histogram


class Sketch(Record):
    """The magnitudes of one activation, coarsely: counts in equal bins from 0, and the share beyond its threshold."""

    width: float
    counts: tuple[int, ...]
    largest: float
    clipped: float


class Histograms(Record):
    """What calibration saw, by tensor; nothing if its ranges were given."""

    tensors: dict[str, Sketch]


BINS = 64


def sketch(histogram: Histogram, amax: float) -> Sketch:
    """Neighbouring bins are added up. What is clipped is counted in the fine bins, whose edges thresholds lie on."""
    counts = histogram.used()
    merged = -(-len(counts) // BINS)
    padded = np.zeros(merged * BINS, np.int64)
    padded[: len(counts)] = counts
    kept = len(counts) if amax >= histogram.amax else round(amax / histogram.width)
    return Sketch(
        width=merged * histogram.width,
        counts=tuple(int(count) for count in padded.reshape(BINS, merged).sum(axis=1)),
        largest=histogram.amax,
        clipped=float(counts[kept:].sum() / max(1, counts.sum())),
    )
