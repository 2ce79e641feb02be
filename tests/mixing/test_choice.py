"""Mixes are chosen by made-up layer times and races."""

from types import SimpleNamespace

import numpy as np
import pytest
from support.mixes import mix_with

from enginery.core.errors import EngineryError
from enginery.mixing.choice import choose
from enginery.mixing.in_words import in_words
from enginery.mixing.make import Made
from enginery.mixing.records import Times

WAYS = [(), (0, 1), (1,), (0,)]
LAYERS = [np.array(each) for each in ([[10, 10], [10, 12]], [[20, 5]] * 2, [[10, 5]] * 2, [[20, 10], [20, 12]])]
FAST, EVEN, SLOW = (Times(middle=each, low=each - 0.02, high=each + 0.02) for each in (1.2, 1.01, 0.8))


def races(laps, *speeds):
    """Return races in which the candidates have these speeds, and laps give this result."""

    def times_over(rival, number):
        middle = speeds[number] / speeds[rival]
        return Times(middle=middle, low=middle - 0.01, high=middle + 0.01)

    return SimpleNamespace(
        race_all=lambda numbers, seconds: SimpleNamespace(times_over=times_over),
        laps_of=lambda rival, number, seconds: laps,
    )


def chosen(raced, used=(0.1, 0, 0.1, 0.1), traces=None):
    made = [Made(way, "an engine", each) for way, each in zip(WAYS, used, strict=True)]
    found = choose("best", "bf16", made, LAYERS, raced, 1.0)
    return mix_with("bf16", traces, blocks=(), floating=(), **found._asdict())


CASES = {
    "a mix that wins is taken": (races(FAST, 1, 0.9, 1.2, 0.7), (2, "int8", True)),
    "not one that may be chance": (races(EVEN, 1, 0.9, 1.05, 0.7), (2, "int8", False)),
    "the rival is the faster of both": (races(FAST, 1, 1.1, 1.2, 0.7), (2, "bf16", True)),
    "one that lost at once is not raced again": (races(FAST, 1, 2, 1.2, 0.7), (2, "bf16", False)),
    "the race decides which mix, not the promise": (races(FAST, 1, 0.9, 1.1, 1.2), (3, "int8", True)),
}


@pytest.mark.parametrize(("raced", "answer"), CASES.values(), ids=list(CASES))
def test_a_mix_is_taken_if_it_beats_int8_and_the_other_in_a_race(raced, answer):
    mix = chosen(raced)
    assert (mix.mixed, mix.rival, mix.delivers) == answer


def test_what_breaks_a_threshold_is_no_candidate():
    mix = chosen(races(FAST, 1, 0.9, 1.2, 0.7), used=(0.9, 0.1, 2, 0.5))
    assert (mix.mixed, mix.rival) == (3, "bf16")
    assert [each.raced is None for each in mix.candidates] == [False, False, True, False]
    message = r"^mix\.best: neither int8 nor bf16 keeps precisions\.best\.thresholds .* takes 90% of what they allow"
    with pytest.raises(EngineryError, match=message):
        chosen(races(FAST, 1, 1, 1, 1), used=(0.9, 2, 0.1, 0.1))


def test_promised_stands_beside_delivered():
    promised = "layer times promised 1.400 times (1.333 to 1.467) the speed of int8"
    raced = races(SLOW, 1, 0.9, 1.2, 0.7)
    assert in_words(chosen(raced, used=(0, 0, 2, 2))) == (
        "best is int8, the faster of int8 and bf16: no mix of the two keeps the thresholds on calibration samples"
    )
    assert in_words(chosen(raced, used=(2, 0, 2, 2))).startswith("best is bf16, as the other takes 200% of what the")
    assert in_words(chosen(raced)).endswith(f"{promised}, and a race delivered 0.800 times (0.780 to 0.820)")
    unraced = in_words(chosen(None, traces="data/traces/board"))
    assert unraced.endswith(
        f"{promised}, and nothing was raced, because layer times are those of data/traces/board, from a board"
    )
