"""Labels of pictures: placed apart from dots and other labels, wrapped and cut."""

import re

import pytest
from support.pages import page_of

from enginewright.report.page.charts import HEIGHT, Axes, Curve, box_of_dot, draw_curves, place_labels, unbeaten
from enginewright.report.page.picture import Scale, wrapped


def test_names_of_curves_that_would_overlap_move_down():
    curves = [Curve(name, ((0, 0), (1, end)), "plain") for name, end in (("low", 0.2), ("near", 0.21), ("high", 0.9))]
    drawn = str(draw_curves("key", "", "", curves, Axes(Scale(0, 1), Scale(0, 1), "", "")))
    names = re.findall(r'<text [^>]*y="([\d.]+)"[^>]*>(low|near|high)<', drawn)
    places = {name: float(height) for height, name in names}
    assert places["near"] == pytest.approx(HEIGHT * 0.79 + 4, abs=0.1)
    assert places["low"] == pytest.approx(places["near"] + 15, abs=0.1)
    assert places["high"] == pytest.approx(HEIGHT * 0.1 + 4, abs=0.1)


def labels_of(*dots):
    return place_labels(dots, bottom=260, right=24)


@pytest.mark.parametrize("distance", [0.0, 0.005, 0.02, 0.044, 0.1, 0.2])
@pytest.mark.parametrize("start", [0.02, 0.13, 0.5, 0.75])
@pytest.mark.parametrize("down", [0, 4, 12])
def test_no_label_of_five_near_dots_lies_on_another_dot(start, distance, down):
    names = ("fp32", "fp16", "bf16", "int8", "fp8")
    dots = [(min(0.91, start + number * distance), 120 + number * down, name) for number, name in enumerate(names)]
    for dot, label in zip(dots, labels_of(*dots), strict=True):
        assert not any(label.meets(box_of_dot(x, y)) for x, y, name in dots if name != dot[2])


def test_two_dots_beside_each_other_have_their_labels_outside():
    """As fp16 and fp32 lay on an H200: the label of one hid the other."""
    right, left = labels_of((0.905, 60, "fp32"), (0.861, 60, "fp16"))
    assert (right.start > 0, right.y, left.end < 0, left.y) == (True, 60, True, 60)


def test_a_label_that_finds_no_room_beside_its_dot_is_tied_to_it(findings, evidence):
    assert [label.y for label in labels_of((0.13, 60, "fp32"), (0.12, 60, "fp16"))] == [60, 75]
    near = [evidence(name, (speed, speed, speed), relative=1e-7) for name, speed in (("fp32", 1.2), ("fp16", 1.1))]
    page = page_of(findings(*near, evidence("int8", (9.0, 8.9, 9.1))))
    drawn = page.partition('id="tradeoff-error-title"')[2].partition("</figure>")[0]
    assert drawn.count('class="leader"') == 1
    assert drawn.rindex("<text") < drawn.index("<circle")  # dots lie above labels


def test_what_no_other_beats_in_both_figures_stays():
    offers = [(9, 10), (5, 4), (4, 5), (1, 8), (4, 6)]
    assert unbeaten(offers, lambda offer: offer) == [(1, 8), (4, 5), (5, 4)]


def test_long_labels_are_wrapped_and_cut():
    assert wrapped("PyTorch eager+channels_last+fp16") == ["PyTorch eager", "+channels_last", "+fp16"]
    assert wrapped("PyTorch max_autotune+channels_last+bf16") == ["PyTorch", "max_autotune", "+channels_last", "+bf16"]
    assert all(len(line) <= 18 for line in wrapped("x" * 300))
    assert wrapped(" ".join(["eleven_letters"] * 9)) == ["eleven_letters"] * 3 + ["eleven_letters…"]
