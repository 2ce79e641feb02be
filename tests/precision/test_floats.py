"""What a quantized graph leaves in floats, by kind."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginewright.precision.floats import (
    Left,
    doubt_in_words,
    floats_in_words,
    left_in_floats,
    products_of,
    smaller_in_words,
)


def of_words(bytes_for="cw"):
    """Return a graph of words, a GRU and a classifier, whose weights are in bytes."""
    weights = {"table": (100, 8), "w": (1, 48, 8), "r": (1, 48, 16), "cw": (16, 4)}
    arrays = {name: np.ones(shape, np.int8 if name == bytes_for else np.float32) for name, shape in weights.items()}
    arrays |= {"scale": np.float32(1), "axes": np.array([0], np.int64)}
    nodes = [
        helper.make_node("Gather", ["table", "words"], ["looked_up"], "look_up"),
        helper.make_node("Transpose", ["looked_up"], ["steps"], "turn", perm=[1, 0, 2]),
        helper.make_node("GRU", ["steps", "w", "r"], ["", "last"], "gru", hidden_size=16),
        helper.make_node("Squeeze", ["last", "axes"], ["state"], "squeeze"),
        helper.make_node("QuantizeLinear", ["state", "scale"], ["bytes"], "round"),
        helper.make_node("DequantizeLinear", ["bytes", "scale"], ["rounded"], "read"),
        helper.make_node("DequantizeLinear", ["cw", "scale"], ["weights"], "weights"),
        helper.make_node("MatMul", ["rounded", "weights"], ["scores"], "classify"),
    ]
    words = helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", "length"])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 4])
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "words", [words], [scores], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def test_weights_and_operations_of_what_reads_no_rounded_value_are_counted_by_kind():
    found = left_in_floats(of_words(), {"words": np.zeros((1, 5), np.int64)})
    gru, table, classifier = 48 * (8 + 16), 100 * 8, 16 * 4
    weights = gru + table + classifier
    assert [(row.kind, row.count) for row in found] == [("GRU", 1), ("embedding", 1)]
    assert [row.weights for row in found] == pytest.approx([gru / weights, table / weights])
    assert [row.operations for row in found] == pytest.approx([5 * gru / (5 * gru + classifier), 0])
    assert found[0].names == ("gru", "last")


def test_a_recurrent_layer_multiplies_all_its_weights_in_each_step():
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"])
    assert products_of(node, {"x": (7, 1, 8), "w": (1, 64, 8), "r": (1, 64, 16)}, {"w", "r"}) == 7 * 64 * (8 + 16)


def left(kind, weights, operations):
    return Left(kind=kind, weights=weights, operations=operations, count=2, names=())


def test_only_what_matters_is_said():
    assert floats_in_words([left("Conv", 0.04, 0.01), left("other", 0.01, 0)]) is None
    assert floats_in_words([left("GRU", 0.95, 0.9), left("Conv", 0.01, 0.01)]) == (
        "96% of the weights and 91% of the operations stay in floats: 2 GRUs (95%, 90%); no compiler here runs a "
        "recurrent layer in bytes"
    )
    assert floats_in_words([left("Conv", 0.04, 0), left("MatMul", 0.04, 0)]).endswith("stay in floats")


def test_w8_is_offered_where_it_alone_has_most_weights_in_bytes():
    assert smaller_in_words("int8", [left("GRU", 0.9, 0.9), left("embedding", 0.05, 0)]) is None
    assert smaller_in_words("int8", [left("embedding", 0.8, 0), left("GRU", 0.1, 0.9)]) == (
        "80% of the weights are in 2 embeddings, which int8 leaves in floats: `precisions: {w8: {from: simplified}}` "
        "makes an engine about 2.8 times smaller than int8's"
    )


def test_a_doubt_is_said_where_most_operations_are_in_floats():
    assert doubt_in_words("int8", [left("Conv", 0.9, 0.5)]) is None
    assert "int8 keeps 61% of the operations in floats" in doubt_in_words("int8", [left("Conv", 0, 0.61)])
