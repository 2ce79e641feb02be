"""The pictures of a search."""

import re

from enginery.report.page.searches import describe_search, search_pictures
from enginery.search.records import Layer, Search, Step


def found(*path, spared=()):
    steps = tuple(
        Step(
            spared=count,
            work=count / 4,
            cosine=1,
            relative_error=0,
            agreement=None,
            metric_drop=None,
            looked_at=2 if used < 0.25 else 16,
            changed=dict([("two", 0), ("one", 1), ("three", 2)][: round(used)]),
            used=used,
        )
        for count, used in path
    )
    layers = tuple(
        Layer(name=name, op_type="Conv", work=0.25, loss=loss)
        for name, loss in zip("abcd", (0.3, 0.01, 0.2, None), strict=True)
    )
    return Search(
        precision="int8", calibration="", model="", rescue="", layers=layers, samples=(8, 16), path=steps, spared=spared
    )


def test_what_was_tried_and_what_each_layer_loses_is_drawn():
    searched = found((0, 3.0), (3, 0.1), (1, 1.2), (2, 0.6), spared=("a", "c"))
    path, losses, changed = (figure.picture for figure in search_pictures(searched))
    described = re.search(r"<desc[^>]*>(.*?)</desc>", path)[1]
    assert re.findall(r"(\d) layers, (\d+)% of the work (\d+)%", described) == [
        ("0", "0", "300"), ("1", "25", "120"), ("2", "50", "60"), ("3", "75", "10")
    ]  # fmt: skip
    assert "a 30.00%, 25.0% of the work; b 1.00%" in losses
    assert re.findall(r"(one|two|three) (\d of \d)", changed) == [
        ("two", "3 of 4"),
        ("three", "1 of 3"),  # three of the steps looked at it
        ("one", "1 of 4"),
    ]
    assert "2 of 4 layers stay in floating point, 50% of the work" in describe_search(searched)
    assert describe_search(searched).endswith("3 of 4 layers were measured, on 16 calibration samples.")


def test_a_model_that_needs_nothing_is_a_sentence():
    searched = found((0, 0.4))
    assert search_pictures(searched) == []
    assert describe_search(searched).startswith("All 4 layers may be in int8, which takes 40%")
