"""The caption of an example says how near it is to another answer."""

import pytest

from enginewright.measure.examples import Example
from enginewright.report.page.pictures import Drawn


@pytest.mark.parametrize(
    ("same", "lead", "caption"),
    [
        (0.0, -3.7, "cat: another answer"),
        (1.0, 0.197, "cat: 20% of the lead left"),
        (0.95, None, "cat: 95% the same"),
        (None, None, "cat"),
    ],
)
def test_a_caption_says_how_near_another_answer_is(same, lead, caption):
    example = Example(file="0.jpg", sample="cat", same=same, lead=lead, reference="1", engine="2")
    assert Drawn(example, "").caption == caption
