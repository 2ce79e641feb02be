"""Find out which precisions a machine executes natively. The generation of a GPU answers for TensorRT, which takes long
to build. Elsewhere a convolution or a product of matrices is compiled in each precision, since neither a processor's
flags nor a runtime's list of capabilities can be trusted. OpenVINO lists FP16 everywhere."""

from dataclasses import replace

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS, RUNTIMES
from enginewright.core.files import scratch_folder
from enginewright.core.params.build import BuildParams, Profile, Range
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.read_interface import read_blueprint

CHANNELS, SIZE = 16, 8  # of the convolution
COLUMNS = 64  # of both matrices
NOT_AT_ALL, UNKNOWN, UNTRIED = "not at all", "not known without a GPU", "not tried on a GPU"
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
    able = {name: name if PRECISIONS[name].is_tried else UNTRIED for name in PURE}
    return {name: kind if here >= PRECISIONS[name].since else NOT_AT_ALL for name, kind in able.items()}


def _compiled_as(runtime: str, precision: str, build: BuildParams) -> str:
    with scratch_folder() as scratch:
        path = scratch / "model.onnx"
        onnx.save(product(precision) if PRECISIONS[precision].block else convolution(precision), path)
        try:
            blueprint = replace(read_blueprint(path, build), is_probe=True)
            layers = load_runtime(runtime).compile(path, blueprint, scratch).layers
        except EnginewrightError:
            return NOT_AT_ALL
    found = next((layer.precision for layer in layers if layer.computes), NOT_AT_ALL)
    return precision if found in PRECISIONS[precision].runs_as else found


def convolution(precision: str) -> onnx.ModelProto:
    """Return a graph of one convolution: in a float precision as AutoCast writes it, quantized as ModelOpt does."""
    kind, constants = PRECISIONS[precision].onnx_type, ""
    multiplied = "[convolution] y = Conv <pads = [1, 1, 1, 1]> (x, w)"
    if PRECISIONS[precision].is_quantized:
        constants = f"<float scale = {{0.05}}, {kind.lower()} zero = {{0}}>"
        nodes = f"{_rounded('input', 'x')} {_rounded('weights', 'w')} {multiplied} {_rounded('y', 'logits')}"
    else:
        cast = f"Cast <to = {TensorProto.DataType.Value(kind)}>"
        nodes = f"x = {cast} (input) w = {cast} (weights) {multiplied} logits = Cast <to = {TensorProto.FLOAT}> (y)"
    return _probe(f"batch, {CHANNELS}, {SIZE}, {SIZE}", constants, nodes, (CHANNELS, CHANNELS, 3, 3))


def _rounded(name: str, result: str) -> str:
    quantized = f"{name}_q = QuantizeLinear ({name}, scale, zero)"
    return f"{quantized} {result} = DequantizeLinear ({name}_q, scale, zero)"


def product(precision: str) -> onnx.ModelProto:
    """Return a graph of one product of matrices in blocks, as `convert` writes it."""
    from enginewright.precision.blocks import write_blocks  # here: it takes a moment to import

    plain = _probe(f"batch, {COLUMNS}", "", "[product] logits = MatMul (input, weights)", (COLUMNS, COLUMNS))
    return write_blocks(plain, precision, {"product": 4.0}).model


def _probe(shape: str, constants: str, nodes: str, weights: tuple[int, ...]) -> onnx.ModelProto:
    graph = f"probe (float[{shape}] input) => (float[{shape}] logits) {constants} {{ {nodes} }}"
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {OPSET}]> {graph}')
    random = np.random.default_rng(0).normal(0, 0.1, weights).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(random, "weights"))
    return model
