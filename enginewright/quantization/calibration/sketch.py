"""Make a histogram small enough to be stored and drawn."""

import numpy as np

from enginewright.core.record import Record
from enginewright.quantization.calibration.histogram import Histogram


class Sketch(Record):
    """A coarse histogram of one activation's magnitudes, in equal bins from 0, and the share beyond its threshold."""

    width: float
    counts: tuple[int, ...]
    largest: float
    clipped: float


class Histograms(Record):
    """The sketch of each tensor that calibration measured; none if its ranges were given."""

    tensors: dict[str, Sketch]


BINS = 64


def sketch(histogram: Histogram, amax: float) -> Sketch:
    """Add up neighbouring bins, and count the share beyond `amax` in the fine bins, since it lies on one's edge."""
    counts = histogram.used()
    per_bin = -(-len(counts) // BINS)
    padded = np.zeros(per_bin * BINS, np.int64)
    padded[: len(counts)] = counts
    kept = len(counts) if amax >= histogram.amax else round(amax / histogram.width)
    return Sketch(
        width=per_bin * histogram.width,
        counts=tuple(padded.reshape(BINS, per_bin).sum(axis=1).tolist()),
        largest=histogram.amax,
        clipped=float(counts[kept:].sum() / max(1, counts.sum())),
    )
