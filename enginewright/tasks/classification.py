"""Classification: an output with a score for each class."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.facts import LABELLED
from enginewright.core.params.model import NO_SCORES
from enginewright.core.text import counted
from enginewright.data.feeds import TINY, Outputs, Places, blocks, finite
from enginewright.tasks.task import Metric, OneOutput, Shapes, Shown, Statistics, Truth, mean

TOP, ENOUGH = 5, 10  # answers; and samples of each class
CLASSES_FOR_TOP = 21  # with fewer, hardly an answer would miss the best five
ROUNDING = 0.02  # probabilities in few bits may miss a sum of 1 by this much


class Classification(OneOutput):
    agreement = "top-1 agreement"
    lacking = "no labels or no scores"
    known, program = LABELLED, "classify"

    def __init__(self, output: str | None, class_names: Sequence[str]) -> None:
        super().__init__(output, class_names)
        self._classes = len(class_names)
        best = Metric("accuracy", mean, is_share=True)
        more = [Metric(f"top-{TOP} accuracy", mean, is_share=True)] if self._classes >= CLASSES_FOR_TOP else []
        self.metrics = [best, *more]

    def candidates(self, shapes: Shapes) -> list[str]:
        """Return the outputs with a column for each class. If there are several, none is taken, since boxes of four
        numbers or centres of two look like scores."""
        return self.with_classes(shapes, axes=2)

    def misfit(self, shapes: Shapes, truth: Truth | None) -> str | None:
        if self._asked == NO_SCORES:
            return None
        if self._asked and not self.reads(shapes):
            what = f"a score for each of {counted(self._classes, 'class')}" if self._classes else "a score per class"
            return f"model.scores: '{self._asked}' is no output with {what}"
        if self._classes and not any(tuple(shape[1:]) == (self._classes,) for shape in shapes.values()):
            return (
                f"samples.source has {counted(self._classes, 'class')}, and no output of the model has as many. If "
                "they are some of the model's, list all under samples.class_names. If its outputs are no scores of "
                f"classes, set task, or model.scores: {NO_SCORES}"
            )
        if self._classes and not self._asked and len(several := self.candidates(shapes)) > 1:
            return (
                f"samples.source has {counted(self._classes, 'class')}, and outputs {', '.join(several)} of the model "
                f"have as many: name the one with their scores as model.scores, or set it to {NO_SCORES}"
            )
        return None

    def measure(self, outputs: Outputs, truth: Truth, places: Places) -> Sequence[Statistics]:
        if not (name := self.read_from(outputs)):
            return []
        right = [_right(outputs[name][block], truth[places[block]]) for block in blocks(outputs[name])]
        return list(np.concatenate(right).T[: len(self.metrics)])

    def best_order(self, outputs: Outputs, truth: Truth) -> tuple[list[int], float]:
        """Return the order of classes with which most answers are right, and their share. Where a class has few
        samples, some order fits any answers: then there is none."""
        from scipy.optimize import linear_sum_assignment  # here: it takes half a second

        if not (name := self.read_from(outputs)) or not self._classes or len(truth) < ENOUGH * self._classes:
            return [], 0.0
        counts = np.zeros((self._classes, self._classes))
        np.add.at(counts, (outputs[name].argmax(axis=1), truth), 1)
        answers, order = linear_sum_assignment(-counts)
        return order.tolist(), float(counts[answers, order].sum() / len(truth))

    def agree(self, reference: Outputs, got: Outputs) -> Statistics | None:
        name = self.read_from(reference)
        return (_top_classes(reference[name]) == _top_classes(got[name])).astype(np.float64) if name else None

    def leads_kept(self, reference: Outputs, got: Outputs) -> NDArray[np.float64]:
        if not (name := self.read_from(reference)):
            return np.empty(0)
        shares = []
        for block in blocks(reference[name]):
            exact, found = finite(reference[name][block]), finite(got[name][block])
            answers = exact.argmax(axis=1)
            shares.append(_margins(found, answers) / np.maximum(_margins(exact, answers), TINY))
        return np.concatenate(shares)

    def doubt(self, shapes: Shapes) -> str:
        name = self.reads(shapes)
        return "" if self._classes or self._asked else f", if {name} holds a score per class: else set model.scores"

    def show(self, outputs: Outputs, top: int) -> Iterator[Shown]:
        for scores in outputs[self.read_from(outputs) or ""].astype(np.float64):
            probabilities = probabilities_of(scores)
            best = np.argsort(-scores, kind="stable")[:top].tolist()  # as in validation, the first of equals wins
            named = [(name_of(self._names, number), number, float(probabilities[number])) for number in best]
            text = "   ".join(f"{name} {share:.1%}" for name, _, share in named)
            listed = [{"class": name, "index": number, "probability": round(share, 6)} for name, number, share in named]
            yield Shown(text, {"top": listed})


def name_of(names: Sequence[str], number: int) -> str:
    """Return the name of a class. A model may know more classes than the samples have names for."""
    return names[number] if number < len(names) else f"class {number}"


def probabilities_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of logits. A model that ends in a softmax gives probabilities itself."""
    if scores.min() >= 0 and abs(scores.sum() - 1) < ROUNDING:
        return scores
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()  # type: ignore[no-any-return]


def _right(scores: NDArray[Any], known: NDArray[Any]) -> NDArray[np.float64]:
    """Tell of each sample whether the best class is right, and whether any of the best five is."""
    best = scores.argmax(axis=1) == known
    among = np.argpartition(-scores, min(TOP, scores.shape[1]) - 1, axis=1)[:, :TOP] == known[:, np.newaxis]
    return np.column_stack([best, best | among.any(axis=1)]).astype(np.float64)


def _top_classes(scores: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate([finite(scores[block]).argmax(axis=1) for block in blocks(scores)])


def _margins(scores: NDArray[np.float64], answers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return by how much the score of each answer is above the best score of the other classes."""
    others, rows = scores.copy(), np.arange(len(scores))
    others[rows, answers] = -np.inf
    return np.asarray(scores[rows, answers] - others.max(axis=1))
