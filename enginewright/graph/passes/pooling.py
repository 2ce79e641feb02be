import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.graph.passes.find import add_constant, find_nodes, names_in_use, unused_name

GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


class PoolWholeImages(ir.passes.InPlacePass):
    """Let a pooling whose window is larger than the image pool the whole image, as it does where `ceil_mode` lets it.

    OpenVINO 2026.4 refuses such a window. EfficientNet of transformers has one of as many pixels as it has channels.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for name in GLOBAL for node in find_nodes(model, name) if _reads_more_than_there_is(node)]
        for node in found:
            node.op_type = GLOBAL[node.op_type]
            node.attributes.clear()
        return ir.passes.PassResult(model, modified=bool(found))


def _reads_more_than_there_is(node: ir.Node) -> bool:
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    window, pads, dilations = (settings.get(name) or () for name in ("kernel_shape", "pads", "dilations"))
    if not settings.get("ceil_mode") or any(pads) or any(each > 1 for each in dilations) or len(node.outputs) > 1:
        return False
    image = node.inputs[0]
    axes = list(image.shape)[2:] if image is not None and image.shape is not None else []
    sizes = [size for size in axes if isinstance(size, int)]
    if len(sizes) != len(window):
        return False
    strides = settings.get("strides") or [1] * len(window)
    beyond = [length - size for length, size in zip(window, sizes, strict=True)]
    return any(beyond) and all(0 <= more < stride for more, stride in zip(beyond, strides, strict=True))


AMOUNTS_ARE_AN_INPUT = 11  # from this opset on; before it, Pad takes its amounts as an attribute


class PadBeforePooling(ir.passes.InPlacePass):
    """Turn the padding of an AveragePool into a Pad node, where the average counts the padded zeros.

    OpenVINO's average in int8 is wrong at such an edge.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        poolings = [node for node in find_nodes(model, "AveragePool") if _counts_its_padding(node)]
        taken = names_in_use(model) if poolings else set()
        for node in poolings:
            _move_padding(model, node, taken)
        return ir.passes.PassResult(model, modified=bool(poolings))


def _counts_its_padding(node: ir.Node) -> bool:
    if any(attribute.is_ref() for attribute in node.attributes.values()):  # known only where the function is called
        return False
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    has_padding, counts_it = any(settings.get("pads", ())), settings.get("count_include_pad") == 1
    return has_padding and counts_it and not settings.get("ceil_mode")


def _move_padding(model: ir.Model, node: ir.Node, taken: set[str]) -> None:
    pads = node.attributes.pop("pads").as_ints()
    del node.attributes["count_include_pad"]
    half = len(pads) // 2
    all_axes = [0, 0, *pads[:half], 0, 0, *pads[half:]]
    padded = ir.val(unused_name(f"{node.outputs[0].name}.padded", taken))
    name = f"{node.name or node.outputs[0].name}.pad"
    if model.opset_imports.get("", 1) >= AMOUNTS_ARE_AN_INPUT:
        amounts = add_constant(model, node, unused_name(f"{padded.name}.pads", taken), all_axes)
        pad = ir.node("Pad", [node.inputs[0], amounts], outputs=[padded], name=name)
    else:
        pad = ir.node("Pad", [node.inputs[0]], {"pads": all_axes}, outputs=[padded], name=name)
    node.prepend(pad)
    node.replace_input_with(0, padded)


class DropIdleStrides(ir.passes.InPlacePass):
    """Give a Conv a stride of one along each axis where its kernel stands at a single place.

    On a CPU with AMX, oneDNN computes a strided convolution wrongly in bf16 and int8 if it makes a single column,
    and rightly with a stride of one. OpenVINO runs oneDNN's kernels.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [(node, axis, unread) for node in find_nodes(model, "Conv") for axis, unread in _idle_axes(node)]
        for node, axis, unread in found:
            strides, pads = (list(node.attributes[name].as_ints()) for name in ("strides", "pads"))
            strides[axis], pads[len(strides) + axis] = 1, pads[len(strides) + axis] - unread
            node.attributes["strides"] = ir.AttrInt64s("strides", strides)
            node.attributes["pads"] = ir.AttrInt64s("pads", pads)
        return ir.passes.PassResult(model, modified=bool(found))


def _idle_axes(node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield each axis with a stride and one place, and how much of the padding behind it the kernel does not reach."""
    images, kernel = _sizes(node.inputs[0]), _sizes(node.inputs[1])
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    is_plain = {"strides", "pads"} <= settings.keys() and settings.get("auto_pad", "NOTSET") == "NOTSET"
    if not is_plain or None in settings.values() or len(images) != len(kernel):
        return
    strides, pads, dilations = settings["strides"], settings["pads"], settings.get("dilations", [1] * len(kernel))
    for axis, (size, length) in enumerate(zip(images, kernel, strict=True)):
        if strides[axis] > 1 and isinstance(size, int) and isinstance(length, int):
            behind = pads[len(kernel) + axis]
            unread = pads[axis] + size + behind - dilations[axis] * (length - 1) - 1
            if 0 <= unread < strides[axis] and unread <= behind:
                yield axis, unread


def _sizes(value: ir.Value | None) -> list[int | ir.SymbolicDim]:
    """Return the sizes of all axes but the first two."""
    return list(value.shape)[2:] if value is not None and value.shape is not None else []


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
