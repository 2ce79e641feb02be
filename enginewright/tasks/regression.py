"""Regression: an output with a number for each target."""

from collections.abc import Iterator, Sequence

import numpy as np

from enginewright.core.facts import Known
from enginewright.data.feeds import Outputs, Places, finite
from enginewright.tasks.task import Metric, OneOutput, Shapes, Shown, Statistics, Truth, Weights

LEAST_VARIANCE = 1e-300  # of targets that are all the same


def _r2(statistics: Statistics, weights: Weights) -> Statistics:
    """Return R² of each set, the mean over the targets: one minus squared errors by squared distances to the mean."""
    sums = np.einsum("bs,sct->bct", weights, statistics)
    errors, targets, squares = sums[:, 0], sums[:, 1], sums[:, 2]
    around = squares - targets**2 / weights.sum(axis=1, keepdims=True)
    return np.asarray((1 - errors / np.maximum(around, LEAST_VARIANCE)).mean(axis=1))


def _rmse(statistics: Statistics, weights: Weights) -> Statistics:
    return np.asarray(np.sqrt(weights @ statistics / weights.sum(axis=1)))


class Regression(OneOutput):
    metrics = (Metric("R²", _r2, unit=""), Metric("RMSE", _rmse, unit="", higher_is_better=False))
    lacking = "no targets or no output with them"
    known = Known(array="targets", words="one or more targets", types="iuf", axes=(1, 2), column="target")

    def candidates(self, shapes: Shapes) -> list[str]:
        return [name for name, shape in shapes.items() if len(shape) in (1, 2)]

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        if why := self.unread(shapes, "a number for each target"):
            return why
        name = self.reads(shapes)
        if name is None or truth is None or (found := tuple(shapes[name][1:]) or (1,)) == truth.shape[1:]:
            return None
        return f"samples.source has {truth.shape[1]} targets for each sample, and output {name} has {found[0]} numbers"

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Statistics]:
        if not (name := self.read_from(outputs)):
            return []
        known, found = truth[places], finite(outputs[name]).reshape(len(places), -1)
        squares, around = (found - known) ** 2, known - known.mean(axis=0)  # small sums, so that few digits cancel
        return [np.stack([squares, around, around**2], axis=1), squares.mean(axis=1)]

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        name = self.read_from(outputs) or ""
        for row in outputs[name].reshape(len(outputs[name]), -1).astype(np.float64):
            yield Shown(
                "   ".join(f"{value:.6g}" for value in row), {"values": [float(f"{value:.7g}") for value in row]}
            )
