"""Embedding: an output with a vector for each sample, whose cosines to others have a meaning.

Pairs of samples that stand beside each other, 0 and 1, 2 and 3 and so on, may have a score for how alike they are."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from enginewright.core.facts import Known
from enginewright.data.feeds import TINY, Outputs, Places, finite
from enginewright.tasks.task import Metric, OneOutput, Shapes, Shown, Statistics, Truth, Weights

NEIGHBOURS = 10
AS_NEAR = 1e-3  # as ANN-Benchmarks has it
ROWS_AT_ONCE = 1024
SHOWN = 4  # of the numbers of a vector, in a line for people


def _spearman(statistics: Statistics, weights: Weights) -> Statistics:
    """Return the correlation of ranks in each set. A pair that a set holds several times is several equal pairs."""
    cosines, scores = (_ranks(column, weights) for column in statistics.T)
    total = weights.sum(axis=1, keepdims=True)
    first, second = (ranks - (weights * ranks).sum(axis=1, keepdims=True) / total for ranks in (cosines, scores))
    together, one, other = (
        (weights * a * b).sum(axis=1) for a, b in ((first, second), (first, first), (second, second))
    )
    return np.asarray(together / np.maximum(np.sqrt(one * other), TINY))


def _ranks(values: NDArray[np.float64], weights: Weights) -> NDArray[np.float64]:
    """Return the rank of each value in each set, up to a constant. Equal values share the middle one of their ranks."""
    order = np.argsort(values, kind="stable")
    starts = np.flatnonzero(np.diff(values[order], prepend=-np.inf))
    held = np.add.reduceat(weights[:, order], starts, axis=1)
    middles = held.cumsum(axis=1) - held / 2
    ranks = np.empty_like(weights)
    ranks[:, order] = np.repeat(middles, np.diff(starts, append=len(values)), axis=1)
    return ranks


SPEARMAN = Metric("Spearman", _spearman, unit="")


class Embedding(OneOutput):
    metrics = (SPEARMAN,)
    agreement, answers, in_pairs = f"recall@{NEIGHBOURS} of PyTorch's neighbours", "the nearest neighbours of ", True
    lacking = "no pairs with scores, or no output with a vector"
    known = Known(array="scores", words="a score", types="iuf", axes=(1,), column="score", pairs=True)
    program = "embed"

    def candidates(self, shapes: Shapes) -> list[str]:
        return [name for name, shape in shapes.items() if len(shape) == 2 and shape[1] != 1]

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        return self.unread(shapes, "a vector for each sample")

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Statistics]:
        name = self.read_from(outputs)
        firsts = np.flatnonzero((places[:-1] % 2 == 0) & (places[1:] == places[:-1] + 1))
        if not name or not len(firsts):
            return []
        vectors = _directions(outputs[name])
        cosines = (vectors[firsts] * vectors[firsts + 1]).sum(axis=1)
        return [np.column_stack([cosines, truth[places[firsts] // 2]]).astype(np.float64)]

    def agree(self, reference: Outputs, got: Outputs) -> Statistics | None:
        """Return for each sample the share of its nearest neighbours, among all samples, that are PyTorch's nearest.
        One that PyTorch has as near as its last neighbour, to AS_NEAR, counts: among thousands of samples many are as
        near, and which of them comes last means nothing. Benchmarks of neighbour searches count the same way."""
        name = self.read_from(reference)
        if not name or len(reference[name]) < 2:
            return None
        count = min(NEIGHBOURS, len(reference[name]) - 1)
        shares = []
        for before, after in zip(_cosines(reference[name]), _cosines(got[name]), strict=True):
            last = -np.partition(-before, count - 1, axis=1)[:, count - 1 : count]
            nearest = np.argpartition(-after, count - 1, axis=1)[:, :count]
            shares.append((np.take_along_axis(before, nearest, 1) >= last - AS_NEAR).mean(axis=1))
        return np.concatenate(shares)

    def beside(self, reference: Outputs, got: Outputs, place: int, words: Callable[[int], str]) -> tuple[str, str]:
        """Return the nearest of all texts, by PyTorch's vectors and by the engine's, each with both cosines."""
        name = self.read_from(reference) or ""
        cosines = []
        for directions in (_directions(outputs[name]) for outputs in (reference, got)):
            cosines.append(directions @ directions[place])
            cosines[-1][place] = -np.inf

        def nearest(by: NDArray[np.float64]) -> str:
            near = int(by.argmax())
            before, after = (each[near] for each in cosines)
            return f"nearest text, cosine {before:.4f} (by the engine {after:.4f}): {words(near)}"

        return nearest(cosines[0]), nearest(cosines[1])

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        for vector in outputs[self.read_from(outputs) or ""].astype(np.float64):
            beginning = " ".join(f"{value:.4f}" for value in vector[:SHOWN])
            more = " …" if len(vector) > SHOWN else ""
            fields: dict[str, object] = {"vector": [float(f"{value:.7g}") for value in vector]}
            yield Shown(f"{len(vector)} numbers, length {np.linalg.norm(vector):.4f}: {beginning}{more}", fields)


def _directions(vectors: NDArray[np.generic]) -> NDArray[np.float64]:
    values = finite(vectors)
    return np.asarray(values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), TINY))


def _cosines(vectors: NDArray[np.generic]) -> Iterator[NDArray[np.float64]]:
    """Yield the cosines of some samples to all others, a row for each; that to itself is the lowest there is."""
    directions = _directions(vectors)
    for start in range(0, len(directions), ROWS_AT_ONCE):
        cosines = directions[start : start + ROWS_AT_ONCE] @ directions.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf
        yield cosines
