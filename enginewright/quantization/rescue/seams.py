"""Find tensors whose channels may be scaled: weights that write them and that read them can hold the scales."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.quantization.placement import AVERAGES, FLOATS, PRODUCTS, is_average, setting

ELEMENTWISE = {"Identity", "LeakyRelu", "Relu"}
LINEAR = AVERAGES | ELEMENTWISE | {"MaxPool"}  # keep a positive factor of a channel


class Constant(NamedTuple):
    """Numbers of the graph, and the axis that the channels lie along."""

    value: ir.Value
    axis: int


class Reader(NamedTuple):
    node: ir.Node
    tensor: str


class Seam(NamedTuple):
    """A tensor whose channels may be scaled, and what lies on both sides of it."""

    written: list[Constant]
    readers: list[Reader]
    axes: dict[str, int]  # that the channels lie along, in each tensor from the one written to those that are read


def find_seams(model: ir.Model) -> Iterator[Seam]:
    for node in model.graph:
        if (seam := _seam_behind(node)) and seam.readers:
            yield seam


def _seam_behind(writer: ir.Node) -> Seam | None:
    """Return the seam if all that reads the channels can take their scales."""
    found = _written_by(writer)
    if found is None:
        return None
    written, axis = found
    seam, waiting = Seam(written, [], {}), [(writer.outputs[0], axis)]
    while waiting:
        value, axis = waiting.pop()
        seam.axes[value.name or ""] = axis
        if value.is_graph_output():
            return None
        for node, index in value.uses():
            if node.graph is not writer.graph:  # the body of an If or a Loop, whose tensors nobody measures
                return None
            if takes_scales(node, index, axis, value):
                seam.readers.append(Reader(node, value.name or ""))
            elif node.op_type in LINEAR and index == 0 and _keeps_channels(node, axis):
                waiting.append((node.outputs[0], axis))
            elif node.op_type == "Transpose":
                waiting.append((node.outputs[0], _moved(node, axis)))
            elif node.op_type == "Gather" and index == 0 and (place := _left_by_gather(node, axis)) is not None:
                waiting.append((node.outputs[0], place))
            elif node.op_type in ("Flatten", "Reshape") and index == 0 and _only_drops_pixels(node, axis):
                waiting.append((node.outputs[0], 1))
            elif node.op_type == "Add" and (bias := _own(node.inputs[1 - index])) and _lies_along(bias, axis, value):
                seam.written.append(Constant(bias, axis - len(value.shape or ())))
                waiting.append((node.outputs[0], axis))
            else:
                return None
    return seam


def _written_by(node: ir.Node) -> tuple[list[Constant], int] | None:
    """Return the constants by which a node writes its channels, and the axis of these in its output."""
    shape = node.outputs[0].shape
    if node.domain or shape is None:
        return None
    last = len(shape) - 1
    match node.op_type:
        case "Conv":
            axes, axis = (0, 0), 1
        case "Gemm":
            axes, axis = (0 if setting(node, "transB") else 1, -1), last
        case "MatMul":
            axes, axis = (-1, -1), last
        case "LayerNormalization" if setting(node, "axis", -1) in (-1, last):
            axes, axis = (-1, -1), last
        case "Mul":  # by the weights of an RMSNorm
            found = [own for value in node.inputs if (own := _own(value)) and _lies_along(own, last, node.outputs[0])]
            return ([Constant(found[0], -1)], last) if found else None
        case _:
            return None
    given = [value for value in node.inputs[1:] if value is not None]
    owned = [_own(value) for value in given]
    if not given or not all(owned):
        return None
    constants = [Constant(value, where) for value, where in zip(given, axes, strict=False)]
    rank = array_of(constants[0].value).ndim
    return (constants, axis) if node.op_type in ("Conv", "LayerNormalization") or rank == 2 else None


def takes_scales(node: ir.Node, index: int, axis: int, value: ir.Value) -> bool:
    """Tell whether its weights can hold the scales of its input's channels."""
    if node.op_type not in PRODUCTS - {"ConvTranspose"} or node.domain or index or not _own(node.inputs[1]):
        return False
    if value.dtype not in FLOATS:
        return False
    rank = array_of(node.inputs[1]).ndim
    match node.op_type:
        case "Conv":
            return axis == 1
        case "Gemm":
            return axis == 1 and not setting(node, "transA")
        case _:
            return rank == 2 and axis == len(value.shape or ()) - 1


def _keeps_channels(node: ir.Node, axis: int) -> bool:
    return (axis == 1 and (node.op_type == "MaxPool" or is_average(node))) or node.op_type in ELEMENTWISE


def _moved(transpose: ir.Node, axis: int) -> int:
    """Return where a Transpose puts an axis. Without an order, it turns them all around."""
    order = transpose.attributes.get_ints("perm")
    rank = len(transpose.outputs[0].shape or ())
    return order.index(axis) if order else rank - 1 - axis


def _left_by_gather(gather: ir.Node, axis: int) -> int | None:
    """Return where an axis is after others were chosen from, as the first token is from all."""
    given, indices = gather.inputs
    if given is None or given.shape is None or indices is None or indices.shape is None:
        return None
    chosen = setting(gather, "axis") % len(given.shape)
    return None if chosen == axis else axis + (len(indices.shape) - 1) * (chosen < axis)


def _only_drops_pixels(node: ir.Node, axis: int) -> bool:
    """Tell whether it makes rows of channels of images of one pixel."""
    given, after = node.inputs[0], node.outputs[0].shape
    if axis != 1 or given is None or given.shape is None or after is None or len(after) != 2:
        return False
    _, channels, *pixels = given.shape
    return after[1] == channels and all(size == 1 for size in pixels)


def _lies_along(bias: ir.Value, axis: int, value: ir.Value) -> bool:
    """Tell whether an added constant has a number for each channel and else none."""
    given, array = value.shape, array_of(bias)
    place = axis - len(given or ()) + array.ndim
    return given is not None and place >= 0 and array.shape[place] == given[axis] == array.size


def _own(value: ir.Value | None) -> ir.Value | None:
    """Return a constant that nothing else reads."""
    return value if value is not None and value.const_value is not None and len(value.uses()) == 1 else None


def array_of(value: ir.Value | None) -> NDArray[np.float32]:
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()
