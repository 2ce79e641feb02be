"""Make a float32 graph that computes what a bfloat16 graph means: ONNX Runtime's CPU provider has no Conv in bfloat16.

Each result is rounded as arithmetic units do it: they take bfloat16 operands, accumulate in float32 and round once.
"""

import numpy as np
import onnx  # alone, since stages that only run graphs import this module, and onnx_ir takes longer to import
from onnx import TensorProto, helper, numpy_helper

from enginewright.graph.data_apart import array_of, with_bodies
from enginewright.graph.shapes import with_shapes

BF16, FP32 = TensorProto.BFLOAT16, TensorProto.FLOAT


def uses_bf16(model: onnx.ModelProto) -> bool:
    """Tell whether a constant is in bfloat16, or a node casts to it."""
    return any(
        any(tensor.data_type == BF16 for tensor in graph.initializer) or any(map(_casts_to_bf16, graph.node))
        for graph in with_bodies(model.graph)
    )


def float32_twin(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph with float32 for bfloat16, and each result rounded; leave `model` as it is."""
    twin = with_shapes(model)  # a copy that holds the type of each tensor
    for graph in reversed(list(with_bodies(twin.graph))):  # a body before its graph, which copies its nodes
        _compute_in_float32(graph)
    return twin


def _compute_in_float32(graph: onnx.GraphProto) -> None:
    typed = (*graph.value_info, *graph.output)
    rounded = {value.name for value in typed if value.type.tensor_type.elem_type == BF16}
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == BF16:
            value.type.tensor_type.elem_type = FP32
    for tensor in graph.initializer:
        if tensor.data_type == BF16:
            tensor.CopyFrom(numpy_helper.from_array(array_of(tensor).astype(np.float32), tensor.name))
    changed = onnx.GraphProto()
    for node in graph.node:
        changed.node.extend(_rounding(node.input[0], node.output[0]) if _casts_to_bf16(node) else _exact(node, rounded))
    del graph.node[:]
    graph.node.extend(changed.node)


def _exact(node: onnx.NodeProto, rounded: set[str]) -> list[onnx.NodeProto]:
    """Return the node, with names for its results before they are rounded, and the nodes that round them."""
    results = rounded.intersection(node.output)
    nodes = [node, *(cast for name in node.output if name in results for cast in _rounding(f"{name}.exact", name))]
    node.output[:] = [f"{name}.exact" if name in results else name for name in node.output]
    return nodes


def _rounding(source: str, target: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [source], [f"{target}.bf16"], to=BF16),
        helper.make_node("Cast", [f"{target}.bf16"], [target], to=FP32),
    ]


def _casts_to_bf16(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(each.name == "to" and each.i == BF16 for each in node.attribute)
