"""A float32 graph that computes what a bfloat16 graph means, for a runtime without bfloat16 kernels.

ONNX Runtime's CPU provider cannot execute Conv in bfloat16. Computing in float32 and rounding each result to bfloat16
is what the graph says: arithmetic units take bfloat16 operands, accumulate in float32 and round once.
"""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BF16, FP32 = TensorProto.BFLOAT16, TensorProto.FLOAT


def uses_bf16(model: onnx.ModelProto) -> bool:
    return any(tensor.data_type == BF16 for tensor in model.graph.initializer) or any(
        node.op_type == "Cast" and _target(node) == BF16 for node in model.graph.node
    )


def float32_twin(model: onnx.ModelProto) -> onnx.ModelProto:
    twin = onnx.ModelProto()
    twin.CopyFrom(model)
    _rewrite(twin.graph, onnx.shape_inference.infer_shapes(model).graph)
    return twin


def _rewrite(graph: onnx.GraphProto, typed: onnx.GraphProto) -> None:
    """With the graphs within it: the branches of an If, the body of a Loop."""
    rounded = {value.name for value in (*typed.value_info, *typed.output) if value.type.tensor_type.elem_type == BF16}
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == BF16:
            value.type.tensor_type.elem_type = FP32
    for tensor in graph.initializer:
        if tensor.data_type == BF16:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    nodes = []
    for node, inferred in zip(graph.node, typed.node, strict=True):
        for within, known in zip(_graphs_within(node), _graphs_within(inferred), strict=True):
            _rewrite(within, known)
        if node.op_type == "Cast" and _target(node) == BF16:
            nodes += _rounding(node.input[0], node.output[0])
            continue
        for index, name in enumerate(node.output):
            if name in rounded:
                node.output[index] = f"{name}.exact"
        nodes.append(node)
        for name in node.output:
            if name.endswith(".exact"):
                nodes += _rounding(name, name.removesuffix(".exact"))
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def _graphs_within(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [attribute.g for attribute in node.attribute if attribute.HasField("g")]


def _rounding(source: str, target: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("Cast", [source], [f"{target}.bf16"], to=BF16),
        helper.make_node("Cast", [f"{target}.bf16"], [target], to=FP32),
    ]


def _target(node: onnx.NodeProto) -> int:
    return next(int(attribute.i) for attribute in node.attribute if attribute.name == "to")
