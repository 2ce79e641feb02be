"""Refuse inputs whose values decide shapes, such as the sizes that a Resize is given."""

from collections.abc import Sequence

import onnx

from enginery.core.errors import EngineryError
from enginery.graph.onnx_file import graph_inputs

SHAPES_AT = {  # the operands of an operator whose values are sizes, or decide them
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1,), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3),
    "Slice": (1, 2, 4), "Tile": (1,), "TopK": (1,), "Upsample": (1,),
}  # fmt: skip


def require_no_shape_inputs(graph: onnx.GraphProto, what: str) -> None:
    """Refuse a vector or a number of integers that decides a shape. Such an input has no sample in each row, and a
    builder of TensorRT would need a range of its values."""
    for tensor in graph_inputs(graph):
        kind = tensor.type.tensor_type
        is_integer = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).kind in "iu"
        if is_integer and len(kind.shape.dim) < 2 and (node := _reader_of_values(graph, tensor.name)):
            raise EngineryError(
                f"{what}: the values of input {tensor.name} decide a shape, in node {node.name or node.output[0]} "
                f"({node.op_type}), and an input must have a sample in each row: export with these values as "
                "constants, or with a size that varies, and give it a range in build.profile"
            )


def _reader_of_values(graph: onnx.GraphProto, name: str) -> onnx.NodeProto | None:
    """Return the first node that takes a shape from the values of an input, or from what is computed from them."""
    carried = {name}
    nodes: Sequence[onnx.NodeProto] = graph.node
    for node in nodes:  # in the order of execution
        shapes = {node.input[place] for place in SHAPES_AT.get(node.op_type, ()) if place < len(node.input)}
        if shapes & carried:
            return node
        if node.op_type != "Shape" and carried & {*node.input}:
            carried.update(node.output)
    return None
