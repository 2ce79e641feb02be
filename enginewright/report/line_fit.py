"""A straight line through costs that grow with a size: a fixed part, and a part for each item."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST_DEVIATION = 0.1  # beyond it, a line does not describe the costs


class Line(NamedTuple):
    fixed: float
    each: float
    deviation: float  # of the point furthest from the line, as a share of the line

    def at(self, size: float) -> float:
        return self.fixed + self.each * size

    @property
    def fits(self) -> bool:
        return self.deviation <= LARGEST_DEVIATION


def fit_line(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """Return the line with the least relative errors, so that small sizes count as much as large ones."""
    size, cost = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    shares = np.stack([1 / cost, size / cost], axis=1)  # the shares of both parts in each cost should add up to 1
    fixed, each = (float(part) for part in np.linalg.lstsq(shares, np.ones(len(cost)))[0])
    if fixed < 0:  # nothing costs less than nothing
        fixed, each = 0.0, _only_part(shares[:, 1])
    elif each < 0:
        fixed, each = _only_part(shares[:, 0]), 0.0
    return Line(fixed, each, float(np.max(np.abs(cost / (fixed + each * size) - 1))))


def _only_part(share: NDArray[np.float64]) -> float:
    """Fit one part where the other is zero."""
    return float(share.sum() / (share @ share))
