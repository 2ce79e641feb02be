"""Labels of pictures: placed apart from dots and other labels, wrapped and cut."""

import pytest
from support.pages import (
    page_of,
)

from enginewright.report.page.charts import Named, apart, covers, frontier, place_labels
from enginewright.report.page.picture import wrapped


def test_labels_that_would_overlap_move_apart():
    first, second, far = apart([(0.1, 50), (0.12, 52), (0.9, 51)])
    assert (first, far) == (50, 51)
    assert second >= first + 15


def labels_of(*dots):
    named = [Named(x, y, name) for x, y, name in dots]
    return named, place_labels(named, bottom=260, right=24)


@pytest.mark.parametrize("distance", [0.0, 0.005, 0.02, 0.044, 0.1, 0.2])
@pytest.mark.parametrize("start", [0.02, 0.13, 0.5, 0.75])
@pytest.mark.parametrize("down", [0, 4, 12])
def test_no_label_of_five_near_dots_lies_on_another_dot(start, distance, down):
    names = ("fp32", "fp16", "bf16", "int8", "fp8")
    placed = [(min(0.91, start + number * distance), 120 + number * down, name) for number, name in enumerate(names)]
    dots, labels = labels_of(*placed)
    assert [label.of.name for label in labels if any(covers(label, dot) for dot in dots if dot is not label.of)] == []


def test_two_dots_beside_each_other_have_their_labels_outside():
    """As fp16 and fp32 lay on an H200: the label of one hid the other."""
    _, labels = labels_of((0.905, 60, "fp32"), (0.861, 60, "fp16"))
    assert [(label.of.name, label.at_left, label.moved) for label in labels] == [("fp32", False, 0), ("fp16", True, 0)]


def test_a_label_that_finds_no_room_beside_its_dot_is_tied_to_it(findings, evidence):
    _, labels = labels_of((0.13, 60, "fp32"), (0.12, 60, "fp16"))
    assert [label.moved for label in labels] == [0, 15]
    near = [evidence(name, (speed, speed, speed), relative=1e-7) for name, speed in (("fp32", 1.2), ("fp16", 1.1))]
    page = page_of(findings(*near, evidence("int8", (9.0, 8.9, 9.1))))
    drawn = page.partition('id="tradeoff-error-title"')[2].partition("</figure>")[0]
    assert drawn.count('class="leader"') == 1
    assert drawn.rindex("<text") < drawn.index("<circle")  # dots lie above labels


def test_the_frontier_holds_the_points_that_no_other_beats():
    """Heights count downwards: 10 is the better where less error is better."""
    places = [(0.9, 2.0), (0.5, 5.0), (0.4, 4.0), (0.1, 10.0)]
    assert frontier(places, lower_is_better=True) == [(0.9, 2.0), (0.5, 5.0), (0.1, 10.0)]
    assert frontier(places, lower_is_better=False) == [(0.9, 2.0)]


def test_long_labels_are_wrapped_and_cut():
    assert wrapped("PyTorch eager+channels_last+fp16") == ["PyTorch eager", "+channels_last", "+fp16"]
    assert wrapped("PyTorch max_autotune+channels_last+bf16") == ["PyTorch", "max_autotune", "+channels_last", "+bf16"]
    assert all(len(line) <= 18 for line in wrapped("x" * 300))
    assert wrapped(" ".join(["eleven_letters"] * 9)) == ["eleven_letters"] * 3 + ["eleven_letters…"]
