"""Mixes are chosen by made-up layer times and races."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.mixes import mix_with

from enginewright.core.errors import EnginewrightError
from enginewright.engine.record import Speedup
from enginewright.precision.mixing import Made, choose

TYPES = ("int8", "bf16", "fp32")
WAYS = [*((each, each) for each in TYPES), ("int8", "bf16"), ("bf16", "fp32")]
LAYERS = [
    np.array(each) for each in ([[10, 10], [10, 12]], [[20, 5]] * 2, [[30, 6]] * 2, [[10, 5]] * 2, [[20, 10], [20, 12]])
]
FAST, EVEN, SLOW = (Speedup(middle=each, low=each - 0.02, high=each + 0.02) for each in (1.2, 1.01, 0.8))


def races(laps, *speeds):
    """Return races in which the candidates have these speeds, and laps give this result."""

    def factor(number, rival, confidence, rng):
        middle = speeds[int(number)] / speeds[int(rival)]
        return middle, middle - 0.01, middle + 0.01

    return SimpleNamespace(
        race_all=lambda numbers, seconds: SimpleNamespace(factor=factor),
        laps_of=lambda rival, number, seconds: laps,
    )


def chosen(raced, used=(0.1, 0, 0, 0.1, 0.1), traces=None, ways=WAYS):
    made = [Made(assignment, "an engine", each) for assignment, each in zip(ways, used, strict=True)]
    found = choose("best", TYPES, made, LAYERS, raced, 1.0)
    return mix_with(TYPES, traces, blocks=(), floating={}, **dict(found))


CASES = {
    "a mix that wins is taken": (races(FAST, 1, 0.9, 0.8, 1.2, 0.7), (3, "int8", True, "int8")),
    "not one that may be chance": (races(EVEN, 1, 0.9, 0.8, 1.05, 0.7), (3, "int8", False, "int8")),
    "the rival is the fastest alone": (races(FAST, 1, 1.1, 0.8, 1.2, 0.7), (3, "bf16", True, "int8")),
    "which may be fp32": (races(FAST, 1, 1.1, 1.15, 1.2, 0.7), (3, "fp32", True, "int8")),
    "one that lost at once is not raced again": (races(FAST, 1, 1.1, 2, 1.2, 0.7), (3, "fp32", False, "fp32")),
    "the race decides which mix, not the promise": (races(FAST, 1, 0.9, 0.8, 1.1, 1.2), (4, "int8", True, "int8")),
}


@pytest.mark.parametrize(("raced", "answer"), CASES.values(), ids=list(CASES))
def test_a_mix_is_taken_if_it_beats_each_type_alone_in_a_race(raced, answer):
    mix = chosen(raced)
    assert (mix.mixed, mix.rival, mix.delivers, mix.made_as) == answer


def test_what_breaks_a_threshold_is_no_candidate():
    mix = chosen(races(FAST, 1, 1.1, 0.8, 1.2, 0.7), used=(0.9, 2, 0.1, 2, 0.5))
    assert (mix.mixed, mix.rival) == (4, "fp32")
    assert [each.raced is None for each in mix.candidates] == [False, False, False, True, False]
    keeps = "neither int8 nor bf16 nor fp32 keeps precisions.best.thresholds on calibration samples"
    with pytest.raises(EnginewrightError, match=rf"^mix\.best: {keeps}; the closest takes 90% of what they allow"):
        chosen(races(FAST, 1, 1, 1, 1, 1), used=(0.9, 2, 1, 0.1, 0.1))


def test_promised_stands_beside_delivered():
    promised = "layer times promised 1.400 times (1.333 to 1.467) the speed of int8"
    raced = races(SLOW, 1, 0.9, 0.8, 1.2, 0.7)
    assert chosen(raced, used=(0, 0, 0, 2, 2)).in_words() == (
        "best is int8, faster than bf16 and fp32: no mix of them keeps the thresholds on calibration samples"
    )
    lost = "best is bf16, faster than fp32, while int8 takes 200% of what the thresholds allow: no mix of them"
    assert chosen(raced, used=(2, 0, 0, 2, 2)).in_words().startswith(lost)
    lost = "best is fp32, while int8 takes 200% and bf16 takes 80% of what the thresholds allow: no mix of them"
    assert chosen(raced, used=(2, 0.8, 0, 2, 2)).in_words().startswith(lost)
    best_mix = f"for the best mix, int8 with 1 of 2 parts in bf16, {promised}"
    assert chosen(raced).in_words().endswith(f"{best_mix}, and a race delivered 0.800 times (0.780 to 0.820)")
    unraced = chosen(None, traces="data/traces/board").in_words()
    assert unraced.endswith(
        f"{promised}, and nothing was raced, because layer times are those of data/traces/board, from a board"
    )


def test_each_type_of_a_mix_is_counted():
    ways = [*WAYS[:3], ("int8",) * 42 + ("bf16",) * 11 + ("fp32",) * 2, WAYS[4]]
    for first, second, counted in (
        (1.2, 0.7, "best is int8 with 11 of 55 parts in bf16 and 2 in fp32: layer times"),
        (0.7, 1.2, "best is bf16 with 1 of 2 parts in fp32: layer times"),
    ):
        assert chosen(races(FAST, 1, 0.9, 0.8, first, second), ways=ways).in_words().startswith(counted)
