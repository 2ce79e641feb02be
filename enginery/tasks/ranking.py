"""Ranking: an output with one score for each sample, of which only the order counts, as of a reranker's pairs."""

from collections.abc import Iterator, Sequence

import numpy as np

from enginery.data.feeds import Outputs
from enginery.tasks.embedding import SPEARMAN
from enginery.tasks.one_output import OneOutput
from enginery.tasks.task import Places, Shapes, Shown, Statistics, Truth, finite

AS_GOOD = 1e-3  # of the spread of all scores: two that are so near may come in either order
ROWS_AT_ONCE = 512


class Ranking(OneOutput):
    metrics = (SPEARMAN,)
    agreement, answers = "order agreement", "the pairs of "
    lacking = "no targets or no output with one score"

    def candidates(self, shapes: Shapes) -> list[str]:
        return [name for name, shape in shapes.items() if len(shape) == 1 or tuple(shape[1:]) == (1,)]

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        if why := self.unread(shapes, "one score for each sample"):
            return why
        if truth is not None and truth.shape[1] != 1:
            return f"samples.source has {truth.shape[1]} targets for each sample, and what is ranked has one"
        return None

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Statistics]:
        if not (name := self.read_from(outputs)):
            return []
        return [np.column_stack([_scores(outputs, name), truth[places][:, 0]]).astype(np.float64)]

    def agree(self, wanted: Outputs, got: Outputs) -> Statistics | None:
        """Return for each sample the share of the others that come before or after it as they do with PyTorch."""
        name = self.read_from(wanted)
        if not name or len(wanted[name]) < 2:
            return None
        before, after = _scores(wanted, name), _scores(got, name)
        near, shares = AS_GOOD * before.std(), []
        for start in range(0, len(before), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            one, other = (scores[rows, np.newaxis] - scores for scores in (before, after))
            same = (np.sign(one) == np.sign(other)) | (np.abs(one) <= near)
            shares.append((same.sum(axis=1) - 1) / (len(before) - 1))  # without the sample itself
        return np.concatenate(shares)

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        for score in _scores(outputs, self.read_from(outputs) or ""):
            yield Shown(f"{score:.6g}", {"score": float(f"{score:.7g}")})


def _scores(outputs: Outputs, name: str) -> Statistics:
    return finite(outputs[name]).reshape(-1)
