"""A source model that does not know the samples is told, whatever its task."""

import numpy as np
import pytest

from enginewright.measure.agreement import answers_by_chance
from enginewright.tasks.choose import task_of

RNG = np.random.default_rng(5)
LABELS = RNG.integers(0, 10, 200)
RIGHT = np.eye(10, dtype=np.float32)[LABELS]
VECTORS = RNG.normal(size=(200, 8)).astype(np.float32)
PAIRS = (VECTORS[::2] * VECTORS[1::2]).sum(1) / (
    np.linalg.norm(VECTORS[::2], axis=1) * np.linalg.norm(VECTORS[1::2], axis=1)
)
VALUES = RNG.normal(size=(200, 1)).astype(np.float32)
MASKS = RNG.integers(0, 3, (20, 4, 4))


def mostly(right, share):
    """Answer right for a share of the samples, and at random for the others."""
    others = RNG.random(len(right)) > share
    return np.where(others[:, np.newaxis], right[RNG.permutation(len(right))], right)


@pytest.mark.parametrize(
    ("task", "answers", "truth", "by_chance"),
    [
        ("classification", RIGHT, LABELS, False),
        ("classification", mostly(RIGHT, 0.3), LABELS, False),
        ("classification", np.roll(RIGHT, 1, axis=1), LABELS, True),  # another order of classes
        ("classification", RIGHT[RNG.permutation(200)], LABELS, True),
        ("classification", np.eye(10)[np.full(200, 3)], LABELS, True),  # the same answer for all
        ("classification", np.eye(10)[np.full(200, 3)], np.full(200, 3), False),  # which is right for these
        ("embedding", VECTORS, PAIRS, False),
        ("embedding", VECTORS[RNG.permutation(200)], PAIRS, True),  # other words, as by another tokenizer
        ("regression", VALUES, VALUES, False),
        ("regression", -VALUES, VALUES, True),
        ("segmentation", np.moveaxis(np.eye(3)[MASKS], -1, 1), MASKS, False),
        ("segmentation", np.moveaxis(np.eye(3)[MASKS[RNG.permutation(20)]], -1, 1), MASKS, True),
    ],
)  # fmt: skip
def test_answers_that_fit_other_samples_as_well_are_told(task, answers, truth, by_chance):
    assert answers_by_chance(task_of(task, "out", (), None, None), {"out": answers}, truth) == by_chance


def test_without_truth_nothing_is_told():
    assert not answers_by_chance(task_of("classification", "out", (), None, None), {"out": RIGHT}, None)
