"""Mend the Q/DQ nodes of ModelOpt that keep TensorRT from fusing kernels. docs/explanation/int8.md has the rules."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.graph.passes.find import remove_unused
from enginewright.precision.placement import PASSED_ON, PRODUCTS, array_of

ACTIVATIONS = {"Clip", "Gelu", "HardSigmoid", "HardSwish", "Mul", "Relu", "Sigmoid"}
FUSED_ON = PASSED_ON | ACTIVATIONS | {"BatchNormalization"}


class Pair(NamedTuple):
    """The nodes that round a tensor."""

    quantize: ir.Node
    dequantize: ir.Node

    @property
    def exact(self) -> ir.Value:
        (value, *_) = self.quantize.inputs
        assert value is not None
        return value

    @property
    def scale(self) -> ir.Value:
        value = self.quantize.inputs[1]
        assert value is not None
        return value

    @property
    def scales(self) -> set[ir.Value]:
        """Return one constant, or two in a float16 graph."""
        scales = (node.inputs[1] for node in self)
        return {scale for scale in scales if scale is not None and scale.const_value is not None}

    def serves(self, node: ir.Node) -> bool:
        """Tell whether nothing but this node reads what is rounded."""
        (rounded,) = self.dequantize.outputs
        is_single = readers_of(self.quantize) == [self.dequantize] and set(readers_of(self.dequantize)) == {node}
        return is_single and not rounded.is_graph_output()


def pair_before(value: ir.Value | None) -> Pair | None:
    """Return the nodes that round this operand."""
    dequantize = value.producer() if value is not None else None
    if dequantize is None or dequantize.op_type != "DequantizeLinear" or dequantize.inputs[0] is None:
        return None
    quantize = dequantize.inputs[0].producer()
    if quantize is None or quantize.op_type != "QuantizeLinear" or quantize.inputs[0] is None:
        return None
    return Pair(quantize, dequantize)


def set_array(value: ir.Value, array: NDArray[Any]) -> None:
    value.const_value = ir.tensor(array, name=value.name)
    value.dtype = value.const_value.dtype


def mend_fusions(model: ir.Model, kept: Collection[str] = ()) -> None:
    """Write one scale for what a Concat joins, and no Q/DQ nodes between a product and its sum, between weights and a
    product of floats, between a product and its activation, or before nothing but nodes in `kept`."""
    for node in model.graph:
        if node.op_type in PRODUCTS:
            _free_weights(node)
    for node in reversed(model.graph):  # what is rounded behind a node decides about it
        if node.op_type == "DequantizeLinear":
            _free_activation(model.graph, node, kept)
        if node.op_type == "Add":
            _free_sum(model.graph, node)
    for scales in _scales_of_concats(model.graph):
        largest = max(float(array_of(scale).item()) for scale in scales)
        for scale in scales:
            set_array(scale, np.full_like(array_of(scale), largest))
    remove_unused(model)


def _free_weights(node: ir.Node) -> None:
    """Let a product read weights as they are if they meet floats: ModelOpt leaves Q/DQ nodes of some in attention.
    They save nothing, and keys and values that are made so end NVIDIA's builder: "operand.h: CHECK(is_value())"."""
    for index, other in ((1, node.inputs[0]), (0, node.inputs[1])):
        weights = pair_before(node.inputs[index])
        if weights and weights.exact.const_value is not None and not is_rounded(other):
            node.replace_input_with(index, weights.exact)


def _free_activation(graph: ir.Graph, dequantize: ir.Node, kept: Collection[str]) -> None:
    """Let each number be changed as it is, and rounded after that alone. The product before it writes no bytes then,
    which some of TensorRT 10.6's cannot: "weightsPtr.h: type() == expectedDataType<T>()", behind a sigmoid on an H200.
    ModelOpt rounds for all readers of a tensor, also those that are kept, and what only moves numbers to those."""
    pair, readers = pair_before(dequantize.outputs[0]), readers_of(dequantize)

    def reads_floats(node: ir.Node) -> bool:
        moves = node.op_type in FUSED_ON and not _leads_to_bytes(node)
        return node.op_type in ACTIVATIONS or node.name in kept or moves

    if pair and pair.exact.const_value is None and readers and all(map(reads_floats, readers)):
        _remove(graph, pair)


def _remove(graph: ir.Graph, pair: Pair) -> None:
    """Let the readers of what is rounded read it as it is. Others may read the bytes by another node."""
    ir.convenience.replace_all_uses_with(pair.dequantize.outputs[0], pair.exact)
    graph.remove(pair.dequantize, safe=True)
    if not readers_of(pair.quantize):
        graph.remove(pair.quantize, safe=True)


def is_rounded(value: ir.Value | None) -> bool:
    """Tell whether a product reads bytes: TensorRT moves Q/DQ nodes across what only passes numbers on."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type in PASSED_ON:
        value = maker.inputs[0]
    return value is not None and maker is not None and maker.op_type == "DequantizeLinear"


def _free_sum(graph: ir.Graph, node: ir.Node) -> None:
    """Let a product's kernel end with the sum. It writes bytes if its other operand and its reader are in bytes."""
    pairs = [_pair(value) for value in node.inputs]
    own = [pair for pair in dict.fromkeys(pairs) if pair and pair.serves(node)]
    if _leads_to_bytes(node):
        own = [pair for pair in own if ends_product(pair.exact)][:1] if all(pairs) else []
    for pair in own:
        _remove(graph, pair)


def _scales_of_concats(graph: ir.Graph) -> list[set[ir.Value]]:
    """Return the scales that belong together: TensorRT moves Q/DQ nodes across a Concat only where they are equal."""
    groups: list[set[ir.Value]] = []
    for node in graph:
        if node.op_type != "Concat":
            continue
        joined = [pair for value in node.inputs if (pair := _pair(value))]
        rounding = [reader for reader in readers_of(node) if reader.op_type == "QuantizeLinear"]
        behind = [Pair(quantize, dequantize) for quantize in rounding for dequantize in readers_of(quantize)]
        if joined and behind:
            scales = {scale for pair in (*joined, *behind) for scale in pair.scales if array_of(scale).size == 1}
            for group in [group for group in groups if group & scales]:
                groups.remove(group)
                scales |= group
            groups.append(scales)
    return groups


def _pair(value: ir.Value | None) -> Pair | None:
    """Return the nodes that round this operand, if it is an activation."""
    pair = pair_before(value)
    return pair if pair and pair.exact.const_value is None else None


def nodes_reading_bytes(model: onnx.ModelProto) -> set[str]:
    """Return the names of the nodes that read activations which were rounded."""
    return {node.name or "" for node in ir.from_proto(model).graph if any(map(_pair, node.inputs))}


def readers_of(node: ir.Node) -> list[ir.Node]:
    return [reader for value in node.outputs for reader in value.consumers()]


def _leads_to_bytes(node: ir.Node) -> bool:
    """Tell whether the result is rounded, at once or by way of what the same kernel computes."""
    waiting, seen = [node], {node}
    while waiting:
        for reader in readers_of(waiting.pop()):
            if reader.op_type == "QuantizeLinear":
                return True
            if reader.op_type in FUSED_ON and reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    return False


def ends_product(value: ir.Value) -> bool:
    """Tell whether a product's kernel can compute it."""
    node = value.producer()
    if node is None or node.op_type in PRODUCTS:
        return node is not None
    operands = [operand for operand in node.inputs if operand is not None and operand.const_value is None]
    return node.op_type in FUSED_ON | {"Add"} and len(operands) == 1 and ends_product(operands[0])
