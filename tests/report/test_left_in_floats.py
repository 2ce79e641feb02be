"""What a quantized engine leaves in floats is said and tabulated where it matters."""

import dataclasses

import pytest

from enginewright.engine.record import LayerTime
from enginewright.precision.floats import Left
from enginewright.report.notes import notes_on
from enginewright.report.where_time_goes import left_table, what_is_left


@pytest.fixture
def with_gru(evidence):
    left = Left(kind="GRU", weights=0.9, operations=0.8, count=1, names=("gru", "last"))
    other = Left(kind="other", weights=0.01, operations=0, count=3, names=("norm",))
    times = (
        ("last,x", 2.0, "fp32"),
        ("GRUSequence_7", 1.0, "fp32"),
        ("conv", 0.5, "int8"),
        ("norm,conv2", 0.5, "int8"),
    )
    layers = tuple(
        LayerTime(name=name, milliseconds=ms, precision=ran_as, kind="", computes=True) for name, ms, ran_as in times
    )
    entry = evidence("int8")
    return dataclasses.replace(entry, floats=(left, other), trace=entry.trace.model_copy(update={"layers": layers}))


def test_weights_operations_and_time_are_told_by_kind(with_gru):
    table = left_table(with_gru)
    assert list(table.loc["GRU"]) == ["1", "90.0%", "80.0%", "75.0%"]
    assert list(table.loc["other"]) == ["3", "1.0%", "0.0%", "-"]


def test_the_report_says_what_was_not_touched(with_gru, findings):
    (note,) = [each for each in notes_on(findings(with_gru)) if each.title == "What int8 leaves in floats"]
    assert note.text.startswith("91% of the weights and 80% of the operations stay in floats: 1 GRU (90%, 80%)")
    assert note.text.endswith("75% of the time of all layers.")


def test_next_to_nothing_is_not_told(evidence):
    assert what_is_left(evidence("int8")) is None
