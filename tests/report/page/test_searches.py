"""The pictures of a search."""

import dataclasses
import re

from support.searches import search_of, step_of

from enginewright.engine.record import LayerTime
from enginewright.report.evidence import Maker
from enginewright.report.page.choices import describe_search, search_pictures
from enginewright.report.where_time_goes import times_of


def found(*path, spared=()):
    steps = [step_of(count, used, count / 4) for count, used in path]
    return search_of(dict(zip("abcd", (0.3, 0.01, 0.2, None), strict=True)), 0.25, steps, spared)


def test_what_was_tried_and_what_each_layer_loses_is_drawn():
    searched = found((0, 3.0), (3, 0.1), (1, 1.2), (2, 0.6), spared=("a", "c"))
    path, losses, work = (str(figure.picture) for figure in search_pictures(searched, None))
    described = re.search(r"<desc[^>]*>(.*?)</desc>", path)[1]
    assert re.findall(r"(\d) layers?, (\d+)% of the work (\d+)%", described) == [
        ("0", "0", "300"), ("1", "25", "120"), ("2", "50", "60"), ("3", "75", "10")
    ]  # fmt: skip
    assert "a 30.00%; b 1.00%; c 20.00%." in losses
    assert "a 25.0%; b 25.0%; c 25.0%." in work
    assert "2 of 4 layers stay in floating point, 50% of the work" in describe_search(searched)
    assert describe_search(searched).endswith("were measured, on 16 calibration samples; 32 others judged the answer.")


def taking(entry, **milliseconds):
    times = {"kind": "", "precision": entry.precision, "computes": True}
    layers = tuple(
        LayerTime(name=name.replace("_and_", ","), milliseconds=ms, **times) for name, ms in milliseconds.items()
    )
    return dataclasses.replace(entry, trace=entry.trace.model_copy(update={"layers": layers}))


def test_what_layers_buy_is_time_where_there_are_times(findings, evidence):
    """`b` is fused into `a` in floating point, and `c` is named after what it returns."""
    searched = found((0, 3.0), (3, 0.1), (1, 0.6), spared=("a",))
    raced = findings(
        taking(evidence("fp32"), a_and_b=0.5, logits=0.25, reorder=9.0),
        taking(evidence("int8"), a=0.5, b=0.1, c=0.125),
    )
    times = times_of(searched, raced, {"logits": Maker("Gemm", "c", None)})
    assert times.floating == {"a": 0.5, "c": 0.25}
    figure = search_pictures(searched, times)[-1]
    assert figure.caption == "What int8 buys the same layers in time"
    assert "a 0.500, spared; b within another layer; c 0.250 to 0.125." in str(figure.picture)
    assert times_of(searched, findings(evidence("fp32")), {}) is None


def test_a_model_that_needs_nothing_is_a_sentence():
    searched = found((0, 0.4))
    assert search_pictures(searched, None) == []
    assert describe_search(searched).startswith("All 4 layers may be in int8, which takes 40%")
