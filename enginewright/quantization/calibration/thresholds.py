"""Choose from a histogram the largest magnitude that quantization keeps: five methods, all vectorized.

Histograms count |x| in bins of equal width from 0. Magnitudes above the threshold saturate.
"""

import numpy as np
from numpy.typing import NDArray

from enginewright.core.params.calibration import CalibrationParams
from enginewright.core.precisions import PRECISIONS
from enginewright.quantization.calibration.histogram import Histogram

LEVELS = PRECISIONS["int8"].largest  # positive int8 values
TYPICAL = 0.9  # the share of samples that `typical` clips nothing of
CHUNK = 256  # candidates, so that what is known of their levels stays in the processor's cache
Counts = NDArray[np.int64]
Floats = NDArray[np.float64]


def choose_amax(histogram: Histogram, params: CalibrationParams) -> float:
    counts = histogram.used()
    if params.method == "typical" and len(histogram.peaks):  # an activation may be empty, such as boxes of nothing
        return float(np.quantile(histogram.peaks, TYPICAL, method="higher"))
    if params.method == "max" or len(counts) <= LEVELS or histogram.amax == 0:
        return histogram.amax
    bins = {
        "percentile": lambda: percentile_bins(counts, params.percentile),
        "entropy": lambda: entropy_bins(counts),
        "mse": lambda: mse_bins(counts),
    }[params.method]()
    return min(histogram.amax, bins * histogram.width)


def percentile_bins(counts: Counts, percentile: float) -> int:
    """Return the fewest bins that hold the given share of all values."""
    cumulative = np.cumsum(counts)
    return int(np.searchsorted(cumulative, cumulative[-1] * percentile / 100)) + 1


def entropy_bins(counts: Counts) -> int:
    """Return the number of bins whose rounding to int8 loses the least information, by NVIDIA's algorithm.

    For each candidate i, the reference P is the first i bins, with all counts beyond them added to the last one. Q is
    the first i bins without this addition, summed into 127 levels and spread evenly over each level's non-empty bins.
    The candidate with the least Kullback-Leibler divergence of Q from P wins.

    Q is constant over the non-empty bins of a level, so sum(P log Q) needs only P's sum over the level. Prefix sums
    give it for every level of every candidate at once, in bins times levels steps instead of bins times bins.
    """
    values = counts.astype(np.float64)
    values[0] = values[1]  # zeros are exact at any scale, and ReLU makes so many that they would outweigh all others
    prefix, prefix_filled, prefix_entropy = map(_prefix_sums, (values, (values > 0).astype(float), _x_log_x(values)))

    candidates = np.arange(LEVELS + 1, len(values) + 1)
    inside, total = prefix[candidates], prefix[-1]
    folded, last = total - inside, values[candidates - 1]

    # P is the histogram, except that the candidate's last bin also holds what was folded into it.
    p_log_p = prefix_entropy[candidates] - _x_log_x(last) + _x_log_x(last + folded)
    p_log_q = np.empty(len(candidates))
    for start in range(0, len(candidates), CHUNK):
        part = slice(start, start + CHUNK)
        edges = candidates[part, None] * np.arange(LEVELS + 1) // LEVELS
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
    """Return the number of bins with the least squared error of rounding to int8 and saturating.

    All numbers that one level stands for have the same rounded value, so that prefix sums of the counts, of the numbers
    and of their squares give the error of a level.
    """
    centers = np.arange(len(counts)) + 0.5
    tried = np.unique(np.linspace(LEVELS + 1, len(counts), candidates).round().astype(int))
    restored = np.arange(LEVELS + 1) * tried[:, None] / LEVELS
    middles = (restored[:, 1:] + restored[:, :-1]) / 2
    ends = np.full((len(tried), 1), len(counts))
    below = np.ceil(middles - 0.5).astype(int)  # how many centers lie below the middle between two levels
    edges = np.concatenate([np.zeros_like(ends), below, ends], axis=1)
    mass, first, second = (np.diff(_prefix_sums(counts * centers**power)[edges], axis=1) for power in range(3))
    errors = (second - 2 * restored * first + restored**2 * mass).sum(axis=1)
    return int(tried[np.argmin(errors)])


def _prefix_sums(values: Floats) -> Floats:
    return np.concatenate([[0.0], np.cumsum(values)])


def _x_log_x(values: Floats) -> Floats:
    result: Floats = values * np.log(np.where(values > 0, values, 1.0))
    return result
