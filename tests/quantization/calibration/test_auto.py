"""`calibration.method: auto`: the ranges that cost the outputs least."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginery.core.params.calibration import METHODS
from enginery.graph.as_written import open_as_written
from enginery.quantization.calibration.auto import choose_by_outputs, tensors_to_round, with_rounding

FEW_LARGE = np.float32(40)  # what a few numbers of `a` reach, the others are below 1


@pytest.fixture
def graph():
    """Two branches: the outputs need the few large numbers of `a`, and hardly see those of `b`."""
    rng = np.random.default_rng(0)
    constants = {
        "w": np.eye(16, dtype=np.float32),
        "v": np.diag([0.0, *[1.0] * 15]).astype(np.float32),  # leaves out the first column, where `b` is large
        "bias": rng.normal(size=16).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["a", "w"], ["of_a"], "first"),
        helper.make_node("Mul", ["b", "b_gain"], ["gained"], "gain"),
        helper.make_node("MatMul", ["gained", "v"], ["of_b"], "second"),
        helper.make_node("Add", ["of_a", "bias"], ["y"], "add"),
        helper.make_node("Identity", ["of_b"], ["z"], "out"),
    ]
    constants["b_gain"] = np.ones((), np.float32)
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16]) for name in "ab"]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 16]) for name in "yz"]
    made = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(array, name) for name, array in constants.items()]
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def feeds(seed):
    rng = np.random.default_rng(seed)
    arrays = {name: rng.uniform(-1, 1, (8, 16)).astype(np.float32) for name in "ab"}
    arrays["a"][:, :4] = arrays["b"][:, 0:1] = FEW_LARGE
    return arrays


def ranges(**large):
    """The methods `max` and `mse` keep all, `percentile` and `entropy` clip to 1."""
    clipped = dict.fromkeys(("a", "gained"), 1.0)
    return {method: dict.fromkeys(clipped, 40.0) if method in ("max", "mse") else clipped for method in METHODS}


def test_each_tensor_takes_the_method_that_costs_the_outputs_least(graph):
    found = choose_by_outputs(graph, ranges(), feeds(0), feeds(1), tries=8)
    assert found.amax == {"a": 40.0, "gained": 1.0}
    assert found.methods["gained"] in ("percentile", "entropy")
    assert found.costs["auto"] < min(found.costs[method] for method in METHODS)


def test_a_choice_that_does_not_prove_itself_is_not_taken(graph):
    """Only the samples to choose by make it look as if large numbers of `gained` did not matter."""
    other = feeds(1)
    other["b"][:, 1:] *= FEW_LARGE
    found = choose_by_outputs(graph, ranges(), feeds(0), other, tries=8)
    assert found.amax == {"a": 40.0, "gained": 40.0}
    assert found.costs["auto"] == found.costs["max"]


def test_rounding_reaches_the_tensors_that_are_named(graph):
    assert tensors_to_round(graph) == ["a", "b", "gained", "of_a"]
    tensors = ["a", "gained"]
    rounded = with_rounding(graph, tensors)
    onnx.checker.check_model(rounded)
    given = feeds(0)
    scales = {f"{name}.scale": np.array(0.5, np.float32) for name in tensors}
    y, z = open_as_written(rounded).run(None, given | scales)
    bias = numpy_helper.to_array(next(tensor for tensor in graph.graph.initializer if tensor.name == "bias"))
    assert y == pytest.approx(np.rint(given["a"] / 0.5) * 0.5 + bias)
    assert z[:, 0] == pytest.approx(0)
