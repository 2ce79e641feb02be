"""The share of the work that each layer has."""

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginewright.graph.onnx_file import load_graph
from enginewright.precision.floats import PRODUCTS_PER_NUMBER, shares_of_work

GRAPH = """agraph (float[batch, 8, height, width] x) => (float[batch, 4, 4, 4] y) {
    [conv] c = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, w)
    [product] p = MatMul (c, v)
    [sum] s = Add (p, p)
    [turned] t = Transpose <perm = [0, 1, 3, 2]> (s)
    [scores] y = MatMul (s, t)
}"""


def test_products_count_and_numbers_that_are_written():
    model = model_of_text(GRAPH, {"w": np.ones((4, 8, 3, 3), np.float32), "v": np.ones((4, 6), np.float32)})
    shares = shares_of_work(model, ["conv", "product", "sum", "scores"], {"x": np.zeros((1, 8, 8, 8))})
    numbers = {"conv": 4 * 4 * 4, "product": 4 * 4 * 6, "sum": 4 * 4 * 6, "scores": 4 * 4 * 4}
    products = {"conv": 16 * 4 * 8 * 9, "product": 4 * 4 * 24, "sum": 0, "scores": 4 * 4 * 4 * 6}
    work = {name: products[name] + PRODUCTS_PER_NUMBER * numbers[name] for name in numbers}
    assert shares == {name: pytest.approx(each / sum(work.values())) for name, each in work.items()}


def test_every_layer_has_work(tiny_onnx):
    shares = shares_of_work(load_graph(tiny_onnx), ["conv1", "conv2", "pool", "classifier"], {})
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["conv2"] > shares["conv1"] > shares["classifier"] > shares["pool"] > 0


def test_what_cannot_be_known_counts_as_one():
    text = """agraph (float[batch, rows, 8] x, int64[3] shape) => (float[batch, rows, 8] y) {
        [known] k = Add (x, x)
        r = Reshape (k, shape)
        [unknown] y = MatMul (r, r)
    }"""
    shares = shares_of_work(model_of_text(text, {}), ["known", "unknown"], {})
    known, unknown = 8 * PRODUCTS_PER_NUMBER, 1 + PRODUCTS_PER_NUMBER
    assert shares["unknown"] == pytest.approx(unknown / (known + unknown))
