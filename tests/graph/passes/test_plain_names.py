import logging
import struct
from collections import Counter

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper
from support.pass_checks import BODIES, all_nodes, applied, as_read, in_body, read_text, renamed

from enginery.graph.passes.plain_names import GivePlainNames

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
    return renamed(read_text(graph, weights), {"inner": inner})


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
def test_names_lose_what_modelopt_stumbles_over(before, after):
    assert names_of(applied(GivePlainNames(), chain(before))) == {"input", "w1", "conv", after, "w2", "y"}


def test_modelopt_then_quantizes_a_tensor_of_any_name(tmp_path):
    plain = quantized_tensors(chain("relu"), tmp_path)
    for name in INNER:
        assert quantized_tensors(applied(GivePlainNames(), chain(name)), tmp_path) == plain
    assert quantized_tensors(chain("act_scale"), tmp_path) < plain  # once this fails, the pass can go


def quantized_tensors(model, folder):
    """How many tensors ModelOpt quantizes with a cache that has a scale for each one."""
    from modelopt.onnx import trt_utils
    from modelopt.onnx.quantization import quantize

    trt_utils.TRT_PYTHON_AVAILABLE = False  # else it parses the graph where TensorRT is installed, which takes a GPU
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
    assert len(names_of(applied(GivePlainNames(), renamed(read_text(graph), {"a": one, "b": two})))) == 4


def test_constants_and_known_shapes_follow_their_names():
    model = read_text(
        "g (float[batch, 2] input) => (float[] y) { a_scale = Mul (input, w_scale) y = Relu (a_scale) }",
        {"w_scale": np.ones(2, np.float32)},
    )
    after = applied(GivePlainNames(), model)
    assert [tensor.name for tensor in after.graph.initializer] == ["w.scale"]
    assert {value.name for value in after.graph.value_info} == {"w.scale", "a.scale"}


def test_inputs_and_outputs_keep_their_names():
    model = read_text("g (float[batch, 2] x_scale) => (float[] y_scale) { y_scale = Relu (x_scale) }")
    assert ir.to_proto(GivePlainNames()(ir.from_proto(model)).model) == as_read(model)


def test_tensors_in_an_if_are_named_plainly_though_the_outputs_name_is_theirs_too():
    graph = """
        g (float[batch, 2] input) => (float[] y_scale) {
            x_scale = Relu (input)
            y_scale = If (yes) <
                then_branch = a () => (float[] r_scale) { r_scale = Add (x_scale, x_scale) },
                else_branch = b () => (float[] r_scale) { z_scale = Neg (x_scale) r_scale = Mul (z_scale, x_scale) }
            >
        }"""
    names = names_of(applied(GivePlainNames(), read_text(graph, {"yes": True})))
    assert names == {"input", "yes", "x.scale", "r.scale", "r.scale.", "z.scale", "y_scale"}


@pytest.mark.parametrize("kind", BODIES)
def test_tensors_in_a_body_are_named_plainly(kind):
    nodes = "a_scale = Relu (x) b_scale = Mul (a_scale, w_scale) r = Neg (b_scale)"
    model = in_body(kind, nodes, (3, 4), {"w_scale": np.full(4, 2, np.float32)})
    assert not any("_scale" in name for name in names_of(applied(GivePlainNames(), model)))


def test_a_bodys_own_inputs_and_constants_are_named_plainly():
    model = in_body("Scan", "a = Relu (x) r = Neg (a)", (3, 4))
    body = next(attribute.g for attribute in model.graph.node[-1].attribute if attribute.name == "body")
    body.input[0].name = body.node[0].input[0] = "x_scale"
    body.node[1].op_type, body.node[1].input[:] = "Sub", ["a", "c_scale"]
    body.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "c_scale"))
    assert {"x.scale", "c.scale"} < names_of(applied(GivePlainNames(), model))


def test_tensors_in_a_function_are_named_plainly():
    function = '<domain: "local", opset_import: ["": 20]> f (x_scale) => (z_scale) { z_scale = Neg (x_scale) }'
    graph = "g (float[batch, 2] input) => (float[] y_scale) { y_scale = local.f (input) }"
    names = names_of(applied(GivePlainNames(), read_text(graph, functions=function)))
    assert names == {"input", "y_scale", "x.scale", "z.scale"}


def test_the_order_of_names_is_that_of_the_alphabet():
    nodes = [helper.make_node("Neg", ["input"], [name]) for name in ("x_scale", "x:scale")]
    model = read_text("g (float[batch, 2] input) => (float[] y) { y = Sum (input, input, input) }")
    model.graph.node[0].input[:] = ["input", "x_scale", "x:scale"]
    model.graph.node.extend([*nodes, model.graph.node[0]])
    del model.graph.node[0]
    after = applied(GivePlainNames(), model)
    assert [node.output[0] for node in after.graph.node] == ["x.scale.", "x.scale", "y"]
