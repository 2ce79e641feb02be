"""ModelOpt sees one large weight of each shape. What becomes of a graph is the same as if it saw all."""

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.quantized import KEEP_NOTHING, constants

from enginewright.core.params.precisions import Keep
from enginewright.graph import data_apart
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision import quantize as quantize_module
from enginewright.precision.quantize import quantize, with_stand_ins

LAYERS, WIDTH = 3, 32
KEPT = Keep(op_types=(), nodes=("product1",))


@pytest.fixture(scope="module")
def model():
    """Return convolutions and products whose weights have the same shapes, of ever larger values, and a scalar that
    all layers share."""
    random = np.random.default_rng(0)
    shapes = {"conv": (WIDTH, WIDTH, 3, 3), "product": (WIDTH, WIDTH)}
    constants, nodes = [numpy_helper.from_array(np.asarray(0.5, np.float32), "half")], []
    for number in range(LAYERS):
        for name, shape in shapes.items():
            weights = random.normal(0, 0.05 * (number + 1), shape).astype(np.float32)
            weights[:, number] = 0  # a channel of a product, whose scale must not be zero
            constants.append(numpy_helper.from_array(weights, f"{name}{number}.weights"))
    value = "input"
    for number in range(LAYERS):
        nodes += [
            helper.make_node("Conv", [value, f"conv{number}.weights"], [f"c{number}"], f"conv{number}", pads=[1] * 4),
            helper.make_node("Relu", [f"c{number}"], [f"r{number}"], f"relu{number}"),
        ]
        value = f"r{number}"
    nodes += [
        helper.make_node("GlobalAveragePool", [value], ["p"], "pool"),
        helper.make_node("Flatten", ["p"], ["f"], "flat"),
    ]
    value = "f"
    for number in range(LAYERS):
        end = "logits" if number == LAYERS - 1 else f"m{number}"
        nodes += [
            helper.make_node("MatMul", [value, f"product{number}.weights"], [f"t{number}"], f"product{number}"),
            helper.make_node("Mul", [f"t{number}", "half"], [end], f"halve{number}"),
        ]
        value = end
    graph = helper.make_graph(
        nodes,
        "alike",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", WIDTH, 4, 4])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", WIDTH])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.fixture
def large(model, tmp_path, monkeypatch):
    monkeypatch.setattr(data_apart, "MOST_BYTES", 1000)
    monkeypatch.setattr(data_apart, "FEWEST_BYTES", 256)
    monkeypatch.setattr(quantize_module, "LARGE", 256)
    (tmp_path / "large").mkdir()
    save_graph(model, tmp_path / "large/model.onnx")
    return tmp_path / "large/model.onnx"


def weights_of(model):
    """Return the weights, and their scales."""
    found, nodes = constants(model), model.graph.node
    rounded = {node.input[0]: found[node.input[1]] for node in nodes if node.op_type == "QuantizeLinear"}
    rounded = {name: np.minimum(scales, 1) for name, scales in rounded.items()}  # that of zeros is any
    weights = {name: array for name, array in found.items() if name.endswith("weights")}
    return weights, {name: scales for name, scales in rounded.items() if name in weights}


def test_nodes_share_weights_of_one_shape_and_copies_of_small_constants(large):
    light, replaced = with_stand_ins(load_graph(large), {"product1"})
    assert {(each.node, tensor.name) for each, tensor in replaced.items()} == {
        ("conv1", "conv1.weights"), ("conv2", "conv2.weights"), ("product2", "product2.weights"),
    }  # fmt: skip
    read = Counter(name for node in light.graph.node for name in node.input if name.startswith("half"))
    assert sorted(read.values()) == [1] * LAYERS
    assert {tensor.name for tensor in light.graph.initializer} == {
        "conv0.weights", "product0.weights", "product1.weights", *read,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("precision", "keep", "rest"),
    [("int8", KEEP_NOTHING, "fp16"), ("int8", KEPT, "fp32"), ("fp8", KEEP_NOTHING, "fp16")],
)
def test_the_graph_is_what_modelopt_makes_of_all_weights(precision, keep, rest, model, large, tmp_path, monkeypatch):
    amax = dict.fromkeys(["input", *(name for node in model.graph.node for name in node.output)], 3.0)
    got = quantize(large, precision, amax, keep, rest)
    monkeypatch.setattr(quantize_module, "LARGE", 1 << 30)
    onnx.save(model, tmp_path / "model.onnx")
    wanted = quantize(tmp_path / "model.onnx", precision, amax, keep, rest)
    assert Counter(node.op_type for node in got.graph.node) == Counter(node.op_type for node in wanted.graph.node)
    (weights, scales), (exact, wanted_scales) = map(weights_of, (got, wanted))
    assert weights.keys() == exact.keys() == {tensor.name for tensor in model.graph.initializer} - {"half"}
    assert scales.keys() == wanted_scales.keys()
    for name in weights:
        assert np.array_equal(weights[name], exact[name])
        assert np.allclose(scales.get(name, 1), wanted_scales.get(name, 1), rtol=2e-3, atol=0)  # twice rounded
