"""A cost that grows with a size, as a line: so much fixed, so much for each."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LARGEST_DEVIATION = 0.1  # beyond, two figures do not describe the cost


class Line(NamedTuple):
    fixed: float
    each: float
    deviation: float  # the largest of a point from the line, as a share of the line

    def at(self, size: float) -> float:
        return self.fixed + self.each * size

    @property
    def fits(self) -> bool:
        return self.deviation <= LARGEST_DEVIATION


def fit_line(sizes: Sequence[float], costs: Sequence[float]) -> Line:
    """With the least relative errors, so that small sizes count as much as large ones. Nothing costs less than zero."""
    size, cost = np.asarray(sizes, np.float64), np.asarray(costs, np.float64)
    shares = np.stack([1 / cost, size / cost], axis=1)  # both figures' shares in each cost are to add up to 1
    fixed, each = (float(figure) for figure in np.linalg.lstsq(shares, np.ones(len(cost)))[0])
    if fixed < 0:
        fixed, each = 0.0, _alone(shares[:, 1])
    elif each < 0:
        fixed, each = _alone(shares[:, 0]), 0.0
    return Line(fixed, each, float(np.max(np.abs(cost / (fixed + each * size) - 1))))


def _alone(share: NDArray[np.float64]) -> float:
    return float(share.sum() / (share @ share))
