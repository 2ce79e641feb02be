"""Find inputs whose values decide shapes, such as the sizes that a Resize is given."""

from collections.abc import Sequence

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile
from enginewright.graph.onnx_file import graph_inputs

SHAPES_AT = {  # the operands of an operator whose values are sizes, or decide them
    "ConstantOfShape": (0,), "Expand": (1,), "Pad": (1,), "Range": (0, 1, 2), "Reshape": (1,), "Resize": (2, 3),
    "Slice": (1, 2, 4), "Tile": (1,), "TopK": (1,), "Upsample": (1,),
}  # fmt: skip


def shape_inputs(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the inputs whose values decide a shape, each with a node that does it: vectors or numbers of integers.
    Such an input has no sample in each row."""
    found = {}
    for tensor in graph_inputs(graph):
        kind = tensor.type.tensor_type
        is_integer = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).kind in "iu"
        if is_integer and len(kind.shape.dim) < 2 and (node := _reader_of_values(graph, tensor.name)):
            found[tensor.name] = node
    return found


def values_of(tensor: onnx.ValueInfoProto, node: onnx.NodeProto, profile: Profile, what: str) -> tuple[str, ...]:
    """Return the axes whose sizes the values of an input are. TensorRT's builder needs a range for each of them."""
    dims, places = tensor.type.tensor_type.shape.dim, profile.places(tensor.name)
    count = dims[0].dim_value if dims else 1
    if sorted(places) != list(range(count)) or not count:
        each = f"each of its {count} values" if count else "a fixed number of values, and each"
        raise EnginewrightError(
            f"{what}: the values of input {tensor.name} decide a shape, in node {node.name or node.output[0]} "
            f"({node.op_type}): give {each} an axis with a range, as in build.profile.axes.NAME: "
            f"{{min: 8, opt: 16, max: 32, values: {{{tensor.name}: PLACE}}}}, and put what it holds into samples.values"
        )
    return tuple(places[place] for place in range(count))


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
