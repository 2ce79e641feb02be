"""Find out which precisions a machine executes natively. The generation of a GPU answers for TensorRT, which takes long
to build. Elsewhere a convolution or a product of matrices is compiled in each precision, since neither a processor's
flags nor a runtime's list of capabilities can be trusted. OpenVINO lists FP16 everywhere."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, RUNTIMES
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BuildParams, Profile, Range
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.read_interface import read_blueprint

CHANNELS, SIZE = 16, 8  # of the convolution
COLUMNS = 64  # of both matrices
NOT_AT_ALL, UNKNOWN = "not at all", "not known without a GPU"
PURE = [name for name, facts in PRECISIONS.items() if not facts.is_mixed]
ONE = Profile(batch=Range(min=1, opt=1, max=1))
OPSET = 22  # the first that allows convolutions in bf16


def executed_as(machine: Machine, build: BuildParams) -> dict[str, str]:
    """Return, by precision, the one that the machine executes in its place: the same one where it is native."""
    if not RUNTIMES[machine.runtime].is_tensorrt:
        build = build.model_copy(update={"profile": ONE})
        return {precision: _compiled_as(machine.runtime, precision, build) for precision in PURE}
    if not machine.capability:
        return dict.fromkeys(PURE, UNKNOWN)
    here = tuple(int(part) for part in machine.capability.split("."))
    return {name: name if here >= PRECISIONS[name].since else NOT_AT_ALL for name in PURE}


def _compiled_as(runtime: str, precision: str, build: BuildParams) -> str:
    with scratch_folder() as scratch:
        path = scratch / "model.onnx"
        onnx.save(product(precision) if PRECISIONS[precision].block else convolution(precision), path)
        try:
            blueprint = replace(read_blueprint(path, build), is_probe=True)
            layers = load_runtime(runtime).compile(path, blueprint, scratch)
        except EnginewrightError:
            return NOT_AT_ALL
    return next((layer.precision for layer in layers if layer.computes), NOT_AT_ALL)


def convolution(precision: str) -> onnx.ModelProto:
    """Return a graph of one convolution: in a float precision as AutoCast writes it, quantized as ModelOpt does."""
    weights = np.random.default_rng(0).normal(0, 0.1, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
    facts, element = PRECISIONS[precision], int(TensorProto.DataType.Value(PRECISIONS[precision].onnx_type))
    multiplied = helper.make_node("Conv", ["x", "w"], ["y"], "convolution", pads=[1, 1, 1, 1])
    initializers = [numpy_helper.from_array(weights, "weights")]
    if facts.is_quantized:
        nodes = [*_quantized("input", "x"), *_quantized("weights", "w"), multiplied, *_quantized("y", "logits")]
        scale = numpy_helper.from_array(np.array(0.05, np.float32), "scale")
        initializers += [scale, helper.make_tensor("zero", element, [], [0])]
    else:
        casts = (("input", "x", element), ("weights", "w", element), ("y", "logits", TensorProto.FLOAT))
        cast_input, cast_weights, cast_output = (helper.make_node("Cast", [a], [b], to=to) for a, b, to in casts)
        nodes = [cast_input, cast_weights, multiplied, cast_output]
    shape: list[str | int | None] = ["batch", CHANNELS, SIZE, SIZE]
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("input", "logits")]
    graph = helper.make_graph(nodes, "probe", tensors[:1], tensors[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)


def product(precision: str) -> onnx.ModelProto:
    """Return a graph of one product of matrices in blocks, as `convert` writes it."""
    from enginewright.precision.blocks import write_blocks  # here: it takes a moment to import

    weights = np.random.default_rng(0).normal(0, 0.1, (COLUMNS, COLUMNS)).astype(np.float32)
    tensors = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", COLUMNS]) for name in ("input", "logits")
    ]
    multiplied = helper.make_node("MatMul", ["input", "weights"], ["logits"], "product")
    constants = [numpy_helper.from_array(weights, "weights")]
    graph = helper.make_graph([multiplied], "probe", tensors[:1], tensors[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return write_blocks(model, precision, {"product": 4.0}).model


def _quantized(name: str, result: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]),
        helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [result]),
    ]
