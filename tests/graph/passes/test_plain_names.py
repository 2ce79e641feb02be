import logging
import struct
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from support.pass_checks import BODIES, all_nodes, apply_pass, model_of_text, model_with_body, renamed, round_trip

from enginewright.graph.passes import give_plain_names

INNER = ["act_scale", "conv_scale", "act_scale_factor", "layer: act", "a:b_scale"]


def names_of(model):
    return {value.name for node in all_nodes(model) for value in (*node.inputs, *node.outputs) if value}


def chain(inner):
    rng = np.random.default_rng(1)
    weights = {name: rng.normal(0, 0.3, (32, 32, 1, 1)).astype(np.float32) for name in ("w1", "w2")}
    graph = """
        g (float[batch, 32, 4, 4] input) => (float[batch, 32, 4, 4] y) {
            [conv1] conv = Conv (input, w1)
            [relu1] inner = Relu (conv)
            [conv2] y = Conv (inner, w2)
        }"""
    return renamed(model_of_text(graph, weights), {"inner": inner})


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("act_scale", "act.scale"),
        ("act_scale_factor", "act.scale_factor"),
        ("layer: act", "layer. act"),
        ("a:b_scale", "a.b.scale"),
        ("plain", "plain"),
    ],
)
def test_names_lose_the_parts_that_modelopt_cannot_read(before, after):
    assert names_of(apply_pass(give_plain_names, chain(before))) == {"input", "w1", "conv", after, "w2", "y"}


def test_modelopt_then_quantizes_a_tensor_of_any_name(tmp_path):
    plain = quantized_tensors(chain("relu"), tmp_path)
    for name in INNER:
        assert quantized_tensors(apply_pass(give_plain_names, chain(name)), tmp_path) == plain
    assert quantized_tensors(chain("act_scale"), tmp_path) < plain  # once this fails, the pass can go


def quantized_tensors(model, folder):
    """Return how many tensors ModelOpt quantizes with a cache that has a scale for each one."""
    from modelopt.onnx import trt_utils
    from modelopt.onnx.quantization import quantize

    trt_utils.TRT_PYTHON_AVAILABLE = False  # with TensorRT installed, ModelOpt would need a GPU to parse the graph
    onnx.save(model, folder / "model.onnx")
    names = ["input", *(node.output[0] for node in model.graph.node)]
    lines = ["TRT-101601-EntropyCalibration2", *(f"{name}: {struct.pack('>f', 0.02).hex()}" for name in names)]
    (folder / "cache").write_text("\n".join(lines) + "\n")
    logging.disable(logging.WARNING)
    try:
        quantize(
            str(folder / "model.onnx"),
            quantize_mode="int8",
            calibration_data={"input": np.zeros((8, 32, 4, 4), np.float32)},
            calibration_shapes="input:8x32x4x4",
            calibration_cache_path=str(folder / "cache"),
            calibration_eps=["cpu"],
            high_precision_dtype="fp32",
            output_path=str(folder / "quantized.onnx"),
            log_level="ERROR",
        )
    finally:
        logging.disable(logging.NOTSET)
    return Counter(node.op_type for node in onnx.load(folder / "quantized.onnx").graph.node)["QuantizeLinear"]


@pytest.mark.parametrize(
    ("one", "two"), [("x:y", "x.y"), ("x:y", "x_scale"), ("x_scale", "x.scale"), ("x_scale", "x:scale")]
)
def test_two_names_that_would_become_one_stay_two(one, two):
    graph = "g (float[batch, 2] input) => (float[] y) { a = Relu (input) b = Neg (input) y = Add (a, b) }"
    assert len(names_of(apply_pass(give_plain_names, renamed(model_of_text(graph), {"a": one, "b": two})))) == 4


def test_constants_and_known_shapes_follow_their_names():
    model = model_of_text(
        "g (float[batch, 2] input) => (float[] y) { a_scale = Mul (input, w_scale) y = Relu (a_scale) }",
        {"w_scale": np.ones(2, np.float32)},
    )
    after = apply_pass(give_plain_names, model)
    assert [tensor.name for tensor in after.graph.initializer] == ["w.scale"]
    assert {value.name for value in after.graph.value_info} == {"w.scale", "a.scale"}


def test_inputs_and_outputs_keep_their_names():
    model = model_of_text("g (float[batch, 2] x_scale) => (float[] y_scale) { y_scale = Relu (x_scale) }")
    read = ir.from_proto(model)
    assert not give_plain_names(read)
    assert ir.to_proto(read) == round_trip(model)


def test_tensors_in_an_if_get_plain_names_even_if_an_output_has_the_same_name():
    graph = """
        g (float[batch, 2] input) => (float[] y_scale) {
            x_scale = Relu (input)
            y_scale = If (yes) <
                then_branch = a () => (float[] r_scale) { r_scale = Add (x_scale, x_scale) },
                else_branch = b () => (float[] r_scale) { z_scale = Neg (x_scale) r_scale = Mul (z_scale, x_scale) }
            >
        }"""
    names = names_of(apply_pass(give_plain_names, model_of_text(graph, {"yes": True})))
    assert names == {"input", "yes", "x.scale", "r.scale", "r.scale.", "z.scale", "y_scale"}


@pytest.mark.parametrize("kind", BODIES)
def test_tensors_in_a_body_get_plain_names(kind):
    nodes = "a_scale = Relu (x) b_scale = Mul (a_scale, w_scale) r = Neg (b_scale)"
    model = model_with_body(kind, nodes, (3, 4), {"w_scale": np.full(4, 2, np.float32)})
    assert not any("_scale" in name for name in names_of(apply_pass(give_plain_names, model)))


def test_a_bodys_own_inputs_and_constants_get_plain_names():
    model = model_with_body("Scan", "a = Relu (x) r = Neg (a)", (3, 4))
    body = next(attribute.g for attribute in model.graph.node[-1].attribute if attribute.name == "body")
    body.input[0].name = body.node[0].input[0] = "x_scale"
    body.node[1].op_type, body.node[1].input[:] = "Sub", ["a", "c_scale"]
    body.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "c_scale"))
    assert {"x.scale", "c.scale"} < names_of(apply_pass(give_plain_names, model))


def test_tensors_in_a_function_get_plain_names():
    function = '<domain: "local", opset_import: ["": 20]> f (x_scale) => (z_scale) { z_scale = Neg (x_scale) }'
    graph = "g (float[batch, 2] input) => (float[] y_scale) { y_scale = local.f (input) }"
    names = names_of(apply_pass(give_plain_names, model_of_text(graph, functions=function)))
    assert names == {"input", "y_scale", "x.scale", "z.scale"}


def test_names_are_given_in_alphabetical_order():
    nodes = [helper.make_node("Neg", ["input"], [name]) for name in ("x_scale", "x:scale")]
    model = model_of_text("g (float[batch, 2] input) => (float[] y) { y = Sum (input, input, input) }")
    model.graph.node[0].input[:] = ["input", "x_scale", "x:scale"]
    model.graph.node.extend([*nodes, model.graph.node[0]])
    del model.graph.node[0]
    after = apply_pass(give_plain_names, model)
    assert [node.output[0] for node in after.graph.node] == ["x.scale.", "x.scale", "y"]
