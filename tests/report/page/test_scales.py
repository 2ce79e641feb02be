"""Scales, their ticks, and figures written in few letters."""

import pytest

from enginewright.report.page.picture import TIMES, Scale, around, decades, from_zero, short


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0"),
        (0.571, "0.571"),
        (15.04, "15.0"),
        (12.345, "12.3"),
        (1234.5, "1,234"),
        (1.23e-5, f"1.2{TIMES}10⁻⁵"),
        (2e6, f"2{TIMES}10⁶"),
    ],
)
def test_figures_are_short(value, said):
    assert short(value) == said


def test_scales_hold_what_they_are_made_for():
    assert from_zero([3.0, 7.0]).place(7.0) == 1
    assert from_zero([]).place(0) == 0
    logarithmic = decades([0.0, 3e-3], least=1e-8)
    assert (logarithmic.low, logarithmic.high) == (1e-9, 1e-2)
    assert logarithmic.place(10**-5.5) == pytest.approx(0.5)
    assert 0 < logarithmic.place(1e-8) < logarithmic.place(1e-7)
    same = around([98.05, 98.05], most=100)
    assert same.low < 98.05 < same.high
    assert around([99.8, 100.0], most=100).high == 100
    for scale in (Scale(0, 13.2), same, logarithmic, decades([1e-3], least=1e-8)):
        assert 2 <= len(scale.ticks) <= 7
        assert all(-1e-6 <= scale.place(tick) <= 1 for tick in scale.ticks)


def test_ticks_have_different_labels():
    assert [Scale(99.4, 100).tick_label(tick) for tick in Scale(99.4, 100).ticks] == ["99.4", "99.6", "99.8", "100"]
    assert [Scale(0, 9).tick_label(tick) for tick in Scale(0, 9).ticks] == ["0", "2.5", "5", "7.5"]
    assert Scale(0, 5000).tick_label(5000) == "5,000"
    assert decades([1e-3, 1e-1], least=1e-8).tick_label(0.01) == "10⁻²"
