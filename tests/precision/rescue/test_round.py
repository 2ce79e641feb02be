"""Weights that are rounded to what the outputs need."""

import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.pass_checks import model_of_text, session_of
from threadpoolctl import threadpool_info

from enginewright.graph.onnx_file import load_graph
from enginewright.precision import round_weights as module
from enginewright.precision.round_weights import MOST_INPUTS, find_layers, round_by_sum, round_weights
from enginewright.precision.write_int8 import output_channels, weight_scales

RNG = np.random.default_rng(0)
IMAGE = "float[batch,4,7,8]"
CASES = {
    "convolution": ("y = Conv <pads = [1, 0, 2, 1], strides = [2, 1]> (input, w)", (6, 4, 3, 3), IMAGE),
    "dilated": ("y = Conv <dilations = [2, 1]> (input, w)", (6, 4, 3, 2), IMAGE),
    "groups": ("y = Conv <group = 2> (input, w)", (6, 2, 3, 3), IMAGE),
    "depthwise": ("y = Conv <group = 4> (input, w)", (8, 1, 3, 3), IMAGE),
    "rows": ("y = Gemm <transB = 1> (input, w)", (6, 8), "float[batch,8]"),
    "columns": ("y = MatMul (input, w)", (8, 6), "float[batch,7,8]"),
}


@pytest.fixture(autouse=True)
def the_same_numbers_in_any_order_of_tests(monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "RNG", np.random.default_rng(0))


def graph_of(nodes, shape, given):
    weights = RNG.normal(size=shape).astype(np.float32)
    return model_of_text(f"g ({given} input) => (float[] y) {{ {nodes} }}", {"w": weights}), weights


def correlated(given):
    """Return inputs of which one tells much about the others, as those of a network do."""
    shape = [int(size) for size in given[len("float[batch,") : -1].split(",")]
    common = RNG.normal(size=(64, *[1] * len(shape)))
    return (common + 0.3 * RNG.normal(size=(64, *shape)) + 0.5).astype(np.float32)


@pytest.mark.parametrize(("nodes", "shape", "given"), CASES.values(), ids=CASES)
def test_rows_times_weights_are_what_the_layer_computes(nodes, shape, given):
    graph, weights = graph_of(nodes, shape, given)
    (layer,) = find_layers(ir.from_proto(graph), ())
    array = correlated(given)
    (exact,) = session_of(graph).run(None, {"input": array})
    found = np.einsum("grd,god->rgo", layer.rows(array, 10**9), layer.by_sum(weights))
    axis = 1 if layer.node.op_type == "Conv" else exact.ndim - 1
    wanted = np.moveaxis(exact, axis, -1)
    assert found.reshape(wanted.shape) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("nodes", "shape", "given"), CASES.values(), ids=CASES)
def test_outputs_lose_less_than_by_the_nearest_bytes(nodes, shape, given):
    graph, weights = graph_of(nodes, shape, given)
    (layer,) = find_layers(ir.from_proto(graph), ())
    fitting, others = ([{"input": correlated(given)}] for _ in range(2))
    steps = weight_scales(weights, output_channels(layer.node, weights.ndim), 7)
    rounded = round_weights(graph, (), fitting, 7)["w"]
    assert rounded.dtype == np.int8
    assert rounded.shape == weights.shape
    rows = layer.rows(others[0]["input"], 10**9)

    def error(array):
        return np.square(np.einsum("grd,god->rgo", rows, layer.by_sum(array * steps - weights))).sum()

    assert error(rounded) < 0.6 * error(np.rint(weights / steps))
    assert weight_scales(rounded * steps, output_channels(layer.node, weights.ndim), 7) == pytest.approx(steps)


def test_inputs_that_say_nothing_leave_the_nearest_bytes():
    units = RNG.uniform(-7, 7, (1, 5, 9))
    units[:, :, 0] = 7
    assert np.array_equal(round_by_sum(units, np.zeros((1, 9, 9)), 7), np.rint(units))
    assert np.array_equal(round_by_sum(units, np.eye(9)[None], 7), np.rint(units))


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ("y = MatMul (input, w)", {"make_y"}),
        ("a = MatMul (input, w) b = MatMul (input, w) y = Add (a, b)", set()),
        ("r = Relu (input) t = Transpose <perm = [0, 2, 1]> (r) y = MatMul (r, t)", set()),
    ],
    ids=["kept", "shared", "no weights"],
)
def test_other_weights_are_left_alone(nodes, kept):
    graph, _ = graph_of(nodes, (8, 6), "float[batch,7,8]")
    for node in graph.graph.node:
        node.name = f"make_{node.output[0]}"
    assert round_weights(graph, kept, [{"input": correlated("float[batch,7,8]")}], 127) == {}


def test_long_sums_are_left_alone():
    graph, _ = graph_of("y = MatMul (input, w)", (MOST_INPUTS + 1, 1), f"float[batch,{MOST_INPUTS + 1}]")
    assert find_layers(ir.from_proto(graph), ()) == []


def test_layers_that_take_turns_get_the_same_bytes(tiny_onnx, samples, monkeypatch):
    graph, given = load_graph(tiny_onnx), [samples.cycled(8), samples.cycled(8)]
    layers = find_layers(ir.from_proto(onnx.shape_inference.infer_shapes(graph)), ())
    at_once = round_weights(graph, (), given, 127)
    monkeypatch.setattr(module, "MOST_BYTES", sum(layer.sum_bytes for layer in layers[:2]))
    assert [len(portion) for portion in module.portions(layers)] == [2, 1]
    in_turns = round_weights(graph, (), given, 127)
    assert in_turns.keys() == at_once.keys()
    assert all(np.array_equal(in_turns[name], at_once[name]) for name in at_once)


def test_one_thread_adds_each_sum(tiny_onnx, samples, monkeypatch):
    """Two would add in another order: the bytes would depend on the number of cores."""
    threads = set()

    def rounded(*given):
        threads.update(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas")
        return round_by_sum(*given)

    monkeypatch.setattr(module, "round_by_sum", rounded)
    round_weights(load_graph(tiny_onnx), (), [samples.cycled(8)], 127)
    assert threads == {1}
