"""The pictures of a search."""

import re

from support.searches import search_of, step_of

from enginewright.report.page.pictures import describe_search, search_pictures


def found(*path, spared=()):
    steps = [step_of(count, used, count / 4) for count, used in path]
    return search_of(dict(zip("abcd", (0.3, 0.01, 0.2, None), strict=True)), 0.25, steps, spared)


def test_what_was_tried_and_what_each_layer_loses_is_drawn():
    searched = found((0, 3.0), (3, 0.1), (1, 1.2), (2, 0.6), spared=("a", "c"))
    path, losses = (str(figure.picture) for figure in search_pictures(searched))
    described = re.search(r"<desc[^>]*>(.*?)</desc>", path)[1]
    assert re.findall(r"(\d) layers?, (\d+)% of the work (\d+)%", described) == [
        ("0", "0", "300"), ("1", "25", "120"), ("2", "50", "60"), ("3", "75", "10")
    ]  # fmt: skip
    assert "a 30.00%; b 1.00%; c 20.00%." in losses
    assert "2 of 4 layers stay in floating point, 50% of the work" in describe_search(searched)
    assert describe_search(searched).endswith("were measured, on 16 calibration samples; 32 others judged the answer.")


def test_a_model_that_needs_nothing_is_a_sentence():
    searched = found((0, 0.4))
    assert search_pictures(searched) == []
    assert describe_search(searched).startswith("All 4 layers may be in int8, which takes 40%")
