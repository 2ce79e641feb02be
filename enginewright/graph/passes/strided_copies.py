import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.graph.passes.constants import add_constant
from enginewright.graph.passes.find import find_nodes, names_in_use, unused_name

Values = Sequence[ir.Value | None]


class ReshapeStridedCopies(ir.passes.InPlacePass):
    """Turn a Gather that copies every element in order into a Reshape.

    PyTorch's exporter writes a global average pool as a mean and such a Gather. ModelOpt's AutoCast keeps the Gather in
    float32, with casts around it, since its indices are large numbers. The Gather stays where it is not certain that
    its indices are those of all elements, in order.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [(node, _copy_by(node, model.graph.inputs)) for node in find_nodes(model, "Gather")]
        copies = [(node, *copy) for node, copy in found if copy]
        taken = names_in_use(model) if copies else set()
        for node, source, shape in copies:
            name = unused_name(f"{node.outputs[0].name}.shape", taken)
            node.op_type = "Reshape"
            node.attributes.clear()
            node.replace_input_with(0, source)
            node.replace_input_with(1, add_constant(model, node, name, shape))
        return ir.passes.PassResult(model, modified=bool(copies))


def _copy_by(gather: ir.Node, model_inputs: Sequence[ir.Value]) -> tuple[ir.Value, list[int]] | None:
    """Return the source of Gather(Reshape(source, [-1]), images * size + [0, 1, ... size - 1]), and the copy's shape.

    The offsets [0, 1, ...] have the shape [1, ...]. The numbers of the images lie on the first of as many axes, and
    the other axes have size one.
    """
    flat = _inputs_of(gather.inputs[0], "Reshape")
    offsets, column = _constant_and_other(_inputs_of(gather.inputs[1], "Add"))
    if not flat or flat[0] is None or offsets is None or offsets.shape[:1] != (1,):
        return None
    size, images = _constant_and_other(_inputs_of(_read_as_column(column, offsets.ndim), "Mul"))
    axis = gather.attributes.get("axis")
    is_all_in_order = (
        (axis is None or axis.value == 0)
        and _is_constant(flat[1], -1)
        and size is not None
        and size.ravel().tolist() == [offsets.size]
        and np.array_equal(offsets.ravel(), np.arange(offsets.size))
        and _holds_that_many_images(flat[0], offsets.size, _counted_by(images), model_inputs)
    )
    return (flat[0], [-1, *offsets.shape[1:]]) if is_all_in_order else None


def _read_as_column(column: ir.Value | None, rank: int) -> ir.Value | None:
    """Return the vector that an Unsqueeze lays along the first of `rank` axes."""
    unsqueezed, *given = _inputs_of(column, "Unsqueeze") or (None,)
    if given:
        constant = _constant(given[0])
        axes = [] if constant is None else constant.ravel().tolist()
    else:  # before opset 13
        node = column.producer() if column else None
        axes = list(node.attributes["axes"].value or ()) if node and "axes" in node.attributes else []
    return unsqueezed if sorted(axis % rank for axis in axes) == list(range(1, rank)) else None


def _counted_by(numbers: ir.Value | None) -> ir.Value | None:
    """Return the tensor whose first axis has as many elements as there are numbers 0, 1, 2 and so on."""
    start, limit, step = _inputs_of(numbers, "Range") or (None, None, None)
    size = next(iter(_inputs_of(limit, "Squeeze")), None)
    counted = next(iter(_inputs_of(size, "Shape")), None)
    node = size.producer() if size else None
    if counted is None or node is None or not (_is_constant(start, 0) and _is_constant(step, 1)):
        return None
    span = {name: attribute.value for name, attribute in node.attributes.items()}
    return counted if span.get("start", 0) == 0 and span.get("end") == 1 else None


def _holds_that_many_images(
    source: ir.Value, size: int, counted: ir.Value | None, model_inputs: Sequence[ir.Value]
) -> bool:
    """Tell whether the source has one image of `size` elements for each image of the model's input `counted`."""
    if counted is None or counted not in model_inputs or not counted.shape or not source.shape:
        return False
    images, *others = source.shape
    sizes = [other for other in others if isinstance(other, int)]
    return _is_same_size(images, counted.shape[0]) and len(sizes) == len(others) and math.prod(sizes) == size


def _is_same_size(one: int | ir.SymbolicDim, other: int | ir.SymbolicDim) -> bool:
    is_known = isinstance(one, int) or one.value is not None
    return is_known and one == other


def _inputs_of(value: ir.Value | None, op_type: str) -> Values:
    """Return the inputs of the node that makes a tensor, or nothing if the node is of another type."""
    node = value.producer() if value else None
    return node.inputs if node and node.op_type == op_type and node.domain == "" else ()


def _constant_and_other(values: Values) -> tuple[NDArray[np.generic] | None, ir.Value | None]:
    constants = [constant for constant in map(_constant, values) if constant is not None]
    others = [value for value in values if _constant(value) is None]
    return (constants[0], others[0]) if len(constants) == len(others) == 1 else (None, None)


def _constant(value: ir.Value | None) -> NDArray[np.generic] | None:
    tensor = ir.convenience.get_const_tensor(value) if value else None
    return None if tensor is None else tensor.numpy()


def _is_constant(value: ir.Value | None, number: int) -> bool:
    constant = _constant(value)
    return constant is not None and constant.ravel().tolist() == [number]
