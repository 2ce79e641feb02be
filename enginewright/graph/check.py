"""Check that a graph computes what it must reproduce."""

from collections.abc import Sequence

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.record import Record
from enginewright.data.feeds import Outputs


class GraphCheck(Record):
    """The distance of a graph's outputs from those that it must reproduce, on real samples."""

    samples: int
    max_abs_error: float
    relative_error: float


def check_at_each_size(wanted: Sequence[Outputs], got: Sequence[Outputs], limit: float, what: str) -> GraphCheck:
    """Check the outputs at each size of the inputs, and return the check with the largest error."""
    checks = [check_graph(one, other, limit, what) for one, other in zip(wanted, got, strict=True)]
    return max(checks, key=lambda check: check.relative_error)


def check_graph(wanted: Outputs, got: Outputs, limit: float, what: str) -> GraphCheck:
    """Compare outputs, and refuse a graph beyond the limit, since its cause is known here and not in later stages."""
    for name, values in wanted.items():
        if got[name].shape != values.shape:
            raise EnginewrightError(f"{what}: {name} has shape {got[name].shape} and should have {values.shape}")
    errors = {name: np.abs(values.astype(np.float64) - got[name]) for name, values in wanted.items()}
    norms = {name: max(float(np.linalg.norm(values)), 1e-12) for name, values in wanted.items()}
    relative = {name: float(np.linalg.norm(error)) / norms[name] for name, error in errors.items()}
    worst = max(relative, key=lambda name: np.inf if np.isnan(relative[name]) else relative[name])
    if not relative[worst] <= limit:  # also true for NaN
        raise EnginewrightError(
            f"{what}: the relative error of {worst} is {relative[worst]:.2e} and may be {limit:.0e} at most"
        )
    return GraphCheck(
        samples=len(wanted[worst]),
        max_abs_error=max(float(error.max()) for error in errors.values()),
        relative_error=relative[worst],
    )
