"""Spell blocks of nvfp4 and mxfp8 out in ONNX's own operators and float32, which ONNX Runtime and OpenVINO execute.

The twin does what NVIDIA documents: a block's scale is such that its largest number becomes the largest of the type,
and numbers are rounded to the nearest, ties to even.
"""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from enginewright.graph.data_apart import array_of
from enginewright.graph.nvidia import DOMAIN, FP4_QUANTIZE, MXFP8_DEQUANTIZE, MXFP8_QUANTIZE

FP8, FP32 = TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT
LARGEST_FP4, LARGEST_FP8 = 6.0, 448.0
E8M0_OF_ONE = 127  # the byte that stands for a scale of 1
TINY = 1e-30  # so that nothing is divided by zero
SLACK = 1e-5  # by which a logarithm may be too large

Array = NDArray[Any]


def has_blocks(model: onnx.ModelProto) -> bool:
    """Tell whether the graph rounds in blocks while it runs. The blocks of int4 are constants, and ONNX's own."""
    return any(node.domain == DOMAIN for node in model.graph.node)


def spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph without blocks; leave `model` as it is."""
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    Speller(twin.graph).spell()
    for entry in [entry for entry in twin.opset_import if entry.domain == DOMAIN]:
        twin.opset_import.remove(entry)
    return twin


class Speller:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._nodes = graph, list(graph.node)
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._quantizing = {
            node.output[0]: node for node in self._nodes if node.op_type in (FP4_QUANTIZE, MXFP8_QUANTIZE)
        }
        read_as_scales = {node.input[1] for node in self._nodes if node.op_type == "DequantizeLinear"}
        self._of_scales = {node.output[0]: node for node in self._nodes if node.output[0] in read_as_scales}

    def spell(self) -> None:
        written = []
        for node in self._nodes:
            if node.op_type in (FP4_QUANTIZE, MXFP8_QUANTIZE) or node.output[0] in self._of_scales:
                continue  # what makes floats of numbers and scales does their work
            if quantizing := self._quantizing.get(node.input[0]) if _makes_floats(node) else None:
                written += _rounding(quantizing, node)
            elif node.op_type == MXFP8_DEQUANTIZE or (_makes_floats(node) and node.input[1] in self._of_scales):
                self._graph.initializer.append(self._floats(node))
            else:
                written.append(node)
        del self._graph.node[:]
        self._graph.node.extend(written)
        read = {name for node in written for name in node.input}
        for tensor in [tensor for tensor in self._graph.initializer if tensor.name not in read]:
            self._graph.initializer.remove(tensor)

    def _floats(self, node: onnx.NodeProto) -> TensorProto:
        """Return weights as the floats that their blocks stand for."""
        numbers, attributes = self._array(node.input[0]), _attributes(node)
        if node.op_type == MXFP8_DEQUANTIZE:
            scales = np.exp2(self._array(node.input[1]).astype(np.float32) - E8M0_OF_ONE)
            dtype = helper.tensor_dtype_to_np_dtype(attributes["output_dtype"])
        else:
            of_scales, dtype = self._of_scales[node.input[1]], np.dtype(np.float32)
            scales = self._array(of_scales.input[0]).astype(np.float32) * self._array(of_scales.input[1])
        floats = numbers.astype(np.float32) * np.repeat(scales, attributes["block_size"], attributes["axis"])
        return numpy_helper.from_array(floats.astype(dtype), node.output[0])

    def _array(self, name: str) -> Array:
        return array_of(self._constants[name])


def _makes_floats(node: onnx.NodeProto) -> bool:
    return node.op_type in ("DequantizeLinear", MXFP8_DEQUANTIZE)


def _rounding(quantizing: onnx.NodeProto, floats: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return the nodes that round an activation in blocks."""
    chain = Chain(floats.output[0])
    blocks = chain(
        "Reshape", chain("Cast", quantizing.input[0], to=FP32), chain.constant([-1, _attributes(floats)["block_size"]])
    )
    amax = chain("ReduceMax", chain("Abs", blocks), chain.constant([-1]), keepdims=1)
    rounded = (
        _in_fp4(chain, blocks, amax, quantizing.input[1]) if len(quantizing.input) > 1 else _in_fp8(chain, blocks, amax)
    )
    whole = chain("Reshape", rounded, chain("Shape", quantizing.input[0]))
    chain("Cast", whole, to=_attributes(floats).get("output_dtype", FP32), output=floats.output[0])
    return chain.nodes


def _in_fp4(chain: "Chain", blocks: str, amax: str, whole: str) -> str:
    """Round to 0, 0.5, 1, 1.5, 2, 3, 4 and 6 times a scale, which is float8 times the scale of the tensor."""
    scale = chain("Div", amax, chain("Mul", whole, chain.constant(LARGEST_FP4)))
    scale = chain("Min", scale, chain.constant(LARGEST_FP8))  # what is beyond the calibrated range is clipped
    scale = chain("Mul", chain("Cast", chain("Cast", scale, to=FP8), to=FP32), whole)
    scaled = chain("Div", blocks, chain("Max", scale, chain.constant(TINY)))
    scaled = chain("Clip", scaled, chain.constant(-LARGEST_FP4), chain.constant(LARGEST_FP4))
    size = chain("Abs", scaled)
    steps = chain("Where", chain("Less", size, chain.constant(4.0)), chain.constant(1.0), chain.constant(2.0))
    steps = chain("Where", chain("Less", size, chain.constant(2.0)), chain.constant(0.5), steps)
    return chain("Mul", chain("Mul", chain("Round", chain("Div", scaled, steps)), steps), scale)


def _in_fp8(chain: "Chain", blocks: str, amax: str) -> str:
    """Round to float8 times a scale that is a power of two."""
    largest = chain("Div", chain("Max", amax, chain.constant(TINY)), chain.constant(LARGEST_FP8))
    power = chain("Div", chain("Log", largest), chain.constant(float(np.log(2))))
    power = chain("Ceil", chain("Sub", power, chain.constant(SLACK)))
    scale = chain("Pow", chain.constant(2.0), power)
    scaled = chain("Clip", chain("Div", blocks, scale), chain.constant(-LARGEST_FP8), chain.constant(LARGEST_FP8))
    return chain("Mul", chain("Cast", chain("Cast", scaled, to=FP8), to=FP32), scale)


class Chain:
    """Collects nodes, under names that begin with that of the last result."""

    def __init__(self, name: str) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._name = name

    def __call__(self, op_type: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """Add a node, and return the name of its result."""
        name = output or f"{self._name}.{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [name], name, **attributes))
        return name

    def constant(self, value: float | list[int]) -> str:
        array = np.asarray(value, np.int64 if isinstance(value, list) else np.float32)
        return self("Constant", value=numpy_helper.from_array(array))


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
