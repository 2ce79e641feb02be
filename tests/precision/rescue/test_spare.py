"""Which layers are the end of a graph."""

import numpy as np
import onnx
import pytest
from support.pass_checks import model_of_text

from enginewright.precision.floats import shares_of_work
from enginewright.precision.rescue import end_of

HEADS = """agraph (float[batch, 64, 8, 8] x) => (float[batch, 4] y, float[batch, 4] z) {
    [conv] c = Conv <pads = [1, 1, 1, 1]> (x, w)
    [pool] p = GlobalAveragePool (c)
    f = Flatten (p)
    [head] h = Gemm (f, v)
    [other] z = Gemm (f, v)
    [sum] y = Add (h, z)
}"""
LAYERS = ["conv", "pool", "head", "other", "sum"]


@pytest.mark.parametrize(
    ("channels", "layers", "end"),
    [
        (512, LAYERS, ["sum", "other", "head"]),
        (512, LAYERS[:4], ["other", "head"]),
        (512, LAYERS[:2], []),  # the last products are in floating point already
        (4, LAYERS, []),  # the end is a large share of the work
    ],
)
def test_the_end_of_a_graph_is_what_follows_all_other_products(channels, layers, end):
    weights = {"w": np.ones((channels, 64, 3, 3), np.float32), "v": np.ones((channels, 4), np.float32)}
    model = model_of_text(HEADS, weights)
    assert end_of(model, shares_of_work(model, layers, {})) == end


def test_a_classifier_of_many_classes_is_read_faster_in_bytes():
    text = "agraph (float[batch, 64, 8, 8] x) => (float[batch, c] y) { [conv] c = Conv (x, w) p = GlobalAveragePool (c)"
    weights = {"w": np.ones((64, 64, 3, 3), np.float32), "v": np.ones((64, 300), np.float32)}
    model = model_of_text(f"{text} f = Flatten (p) [head] y = Gemm (f, v) }}", weights)
    assert end_of(model, {"conv": 0.9999, "head": 0.0001}) == []


def test_what_a_body_multiplies_is_before_it():
    model = model_of_text(HEADS, {"w": np.ones((512, 64, 3, 3), np.float32), "v": np.ones((512, 4), np.float32)})
    body = onnx.parser.parse_graph("inner () => (float[batch, 4] t) { t = MatMul (z, square) }")
    model.graph.output[0].name = "last"
    model.graph.node.append(onnx.helper.make_node("If", ["is"], ["last"], then_branch=body, else_branch=body))
    assert end_of(model, dict.fromkeys(LAYERS, 0.0001)) == ["sum", "head"]
