"""Ranking: an output with one score for each sample, of which only the order counts, as of a reranker's pairs.

Samples may be answers to several questions. Then only the order of the answers to one question has a meaning."""

import copy
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from enginewright.core.facts import Known
from enginewright.data.feeds import Outputs, Places, finite
from enginewright.tasks.embedding import SPEARMAN
from enginewright.tasks.task import Metric, OneOutput, Shapes, Shown, Statistics, Truth, Weights, mean

AS_GOOD = 1e-3  # of the spread of all scores: two that are so near may come in either order
ROWS_AT_ONCE = 512
BEST = 10  # answers to a question, which nDCG looks at
ALONE = -1  # the question of all that are the only answer to theirs: they are ranked among each other


def _spearman(statistics: Statistics, weights: Weights) -> Statistics:
    """Return the mean over the questions, of which each has one number; without questions that of all samples."""
    return mean(statistics, weights) if statistics.shape[1] == 1 else SPEARMAN.of(statistics, weights)


class Ranking(OneOutput):
    metrics = (Metric(SPEARMAN.name, _spearman, unit=""), Metric(f"nDCG@{BEST}", mean, unit=""))
    agreement, answers, in_pairs = "order agreement", "the pairs of ", True
    lacking = "no targets, none that differ, or no output with one score"
    known = Known(array="targets", words="a target", types="iuf", axes=(1, 2), column="target", questions=True)
    program, best_first = "rank", True
    _questions: NDArray[np.int64] | None = None  # of the samples that are compared

    def candidates(self, shapes: Shapes) -> list[str]:
        return [name for name, shape in shapes.items() if len(shape) == 1 or tuple(shape[1:]) == (1,)]

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        if why := self.unread(shapes, "one score for each sample"):
            return why
        if truth is not None and (targets := truth.shape[1] - 1) != 1:
            return f"samples.source has {targets} targets for each sample, and what is ranked has one"
        return None

    def knowing(self, truth: Truth | None, places: Places) -> Self:
        task = copy.copy(self)
        task._questions = None if truth is None else _questions(truth[places])
        if truth is not None and not _is_one(truth[places]):
            task.together, task.in_pairs = truth[places, -1].astype(np.int64), False
        return task

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Statistics]:
        name = self.read_from(outputs)
        targets, scores = truth[places][:, 0], _scores(outputs, name) if name else np.empty(0)
        if not name or np.isnan(targets).any():
            return []
        if _is_one(truth):
            return [np.column_stack([scores, targets])]
        questions = _questions(truth)[places]
        answers = [np.flatnonzero(questions == each) for each in np.unique(questions[questions != ALONE])]
        ordered = [each for each in answers if len(set(targets[each])) > 1]  # which order is right
        if not ordered:
            return []
        ranks = [SPEARMAN.over(np.column_stack([scores[each], targets[each]])) for each in ordered]
        gains = [_ndcg(scores[each], targets[each]) for each in ordered]
        return [np.array(values)[:, np.newaxis] for values in (ranks, gains)]

    def agree(self, reference: Outputs, got: Outputs) -> Statistics | None:
        """Return for each sample the share of the other answers to its question that come before or after it as they do
        with PyTorch. Where nothing is known of questions, there is one."""
        name = self.read_from(reference)
        if not name or len(reference[name]) < 2:
            return None
        before, after = _scores(reference, name), _scores(got, name)
        near, shares, count = AS_GOOD * before.std(), [], len(before)
        questions = np.zeros(count, np.int64) if self._questions is None else self._questions
        for start in range(0, count, ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            one, other = (scores[rows, np.newaxis] - scores for scores in (before, after))
            among = questions[rows, np.newaxis] == questions
            same = among & ((np.sign(one) == np.sign(other)) | (np.abs(one) <= near))
            others = among.sum(axis=1) - 1  # without the sample itself
            shares.append(np.where(others > 0, (same.sum(axis=1) - 1) / np.maximum(others, 1), 1.0))
        return np.concatenate(shares)

    def beside(self, reference: Outputs, got: Outputs, place: int, words: Callable[[int], str]) -> tuple[str, str]:
        """Return the score of a sample, and its place among the answers to its question."""
        name, said = self.read_from(reference) or "", []
        for outputs in (reference, got):
            scores = _scores(outputs, name)
            of = scores if self._questions is None else scores[self._questions == self._questions[place]]
            said.append(f"score {scores[place]:.6g}, place {1 + np.count_nonzero(of > scores[place])} of {len(of)}")
        return said[0], said[1]

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        for score in _scores(outputs, self.read_from(outputs) or ""):
            yield Shown(f"{score:.6g}", {"score": float(f"{score:.7g}")})


def _scores(outputs: Outputs, name: str) -> Statistics:
    return finite(outputs[name]).reshape(-1)


def _questions(truth: Truth) -> NDArray[np.int64]:
    """Return the number of the question of each sample, ALONE for all that have no other answer."""
    _, numbers, counts = np.unique(truth[:, -1], return_inverse=True, return_counts=True)
    return np.where(counts[numbers] > 1, numbers, ALONE)


def _is_one(truth: Truth) -> bool:
    """Tell whether all samples are ranked among each other."""
    return len(np.unique(_questions(truth))) == 1


def _ndcg(scores: Statistics, targets: NDArray[np.float64]) -> float:
    """Return the discounted gain of the best answers by their scores, as a share of the best that there could be."""
    # Each order of equal scores is as likely, so that each of them gains what they gain on average.
    gains, (_, groups) = targets - min(0.0, targets.min()), np.unique(-scores, return_inverse=True)
    means = np.bincount(groups, gains) / np.bincount(groups)
    discounts = 1 / np.log2(np.arange(min(BEST, len(scores))) + 2)
    found, ideal = means[np.sort(groups)][:BEST] @ discounts, np.sort(gains)[::-1][:BEST] @ discounts
    return float(found / ideal)
