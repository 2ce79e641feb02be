"""Rewrite poolings and convolutions that compilers mistake, and the copy that PyTorch writes behind a pooling."""

import math
from collections.abc import Iterator
from typing import Any

import onnx_ir as ir

from enginewright.graph.passes.find import (
    Inserter,
    Values,
    constant_of,
    find_nodes,
    replace_inputs,
    settings_of,
    sizes_of,
    turn_into,
)

GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}
AMOUNTS_ARE_AN_INPUT = 11  # from this opset on; before it, Pad takes its amounts as an attribute


def pool_whole_images(model: ir.Model) -> bool:
    """Let a pooling whose window is larger than the image pool the whole image, as it does where `ceil_mode` lets it.

    OpenVINO 2026.4 refuses such a window. EfficientNet of transformers has one of as many pixels as it has channels.
    """
    found = [node for name in GLOBAL for node in find_nodes(model, name) if _reads_more_than_there_is(node)]
    for node in found:
        turn_into(node, GLOBAL[node.op_type], node.inputs)
    return bool(found)


def _reads_more_than_there_is(node: ir.Node) -> bool:
    settings = settings_of(node) or {}
    window, pads, dilations = (settings.get(name) or () for name in ("kernel_shape", "pads", "dilations"))
    if not settings.get("ceil_mode") or any(pads) or any(each > 1 for each in dilations) or len(node.outputs) > 1:
        return False
    sizes = [size for size in sizes_of(node.inputs[0])[2:] if isinstance(size, int)]
    if len(sizes) != len(window):
        return False
    strides = settings.get("strides") or [1] * len(window)
    beyond = [length - size for length, size in zip(window, sizes, strict=True)]
    return any(beyond) and all(0 <= more < stride for more, stride in zip(beyond, strides, strict=True))


def pad_before_pooling(model: ir.Model) -> bool:
    """Turn the padding of an AveragePool into a Pad node, where the average counts the padded zeros.

    OpenVINO's average in int8 is wrong at such an edge.
    """
    found = [node for node in find_nodes(model, "AveragePool") if _counts_its_padding(settings_of(node) or {})]
    insert = Inserter(model)
    for node in found:
        pads, own = node.attributes.pop("pads").as_ints(), node.outputs[0].name
        del node.attributes["count_include_pad"]
        half = len(pads) // 2
        amounts = [0, 0, *pads[:half], 0, 0, *pads[half:]]
        inputs, attributes = [node.inputs[0]], {"pads": amounts}
        if model.opset_imports.get("", 1) >= AMOUNTS_ARE_AN_INPUT:
            inputs, attributes = [*inputs, insert.constant(node, f"{own}.padded.pads", amounts)], {}
        padded = insert.node(node, "Pad", inputs, f"{own}.padded", f"{node.name or own}.pad", **attributes)
        replace_inputs(node, [padded])
    return bool(found)


def _counts_its_padding(settings: dict[str, Any]) -> bool:
    return any(settings.get("pads", ())) and settings.get("count_include_pad") == 1 and not settings.get("ceil_mode")


def drop_idle_strides(model: ir.Model) -> bool:
    """Give a Conv a stride of one along each axis where its kernel stands at a single place.

    On a CPU with AMX, oneDNN computes a strided convolution wrongly in bf16 and int8 if it makes a single column,
    and rightly with a stride of one. OpenVINO runs oneDNN's kernels.
    """
    found = [(node, axis, unread) for node in find_nodes(model, "Conv") for axis, unread in _idle_axes(node)]
    for node, axis, unread in found:
        strides, pads = (list(node.attributes[name].as_ints()) for name in ("strides", "pads"))
        strides[axis], pads[len(strides) + axis] = 1, pads[len(strides) + axis] - unread
        node.attributes["strides"] = ir.AttrInt64s("strides", strides)
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return bool(found)


def _idle_axes(node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield each axis with a stride and one place, and how much of the padding behind it the kernel does not reach."""
    images, kernel, settings = sizes_of(node.inputs[0])[2:], sizes_of(node.inputs[1])[2:], settings_of(node) or {}
    is_plain = {"strides", "pads"} <= settings.keys() and settings.get("auto_pad", "NOTSET") == "NOTSET"
    if not is_plain or len(images) != len(kernel):
        return
    strides, pads, dilations = settings["strides"], settings["pads"], settings.get("dilations", [1] * len(kernel))
    for axis, (size, length) in enumerate(zip(images, kernel, strict=True)):
        if strides[axis] > 1 and isinstance(size, int) and isinstance(length, int):
            behind = pads[len(kernel) + axis]
            unread = pads[axis] + size + behind - dilations[axis] * (length - 1) - 1
            if 0 <= unread < strides[axis] and unread <= behind:
                yield axis, unread


def reshape_strided_copies(model: ir.Model) -> bool:
    """Turn a Gather that copies every element in order into a Reshape.

    PyTorch's exporter writes a global average pool as a mean and such a Gather. ModelOpt's AutoCast keeps the Gather in
    float32, with casts around it, since its indices are large numbers. It is

        Gather(Reshape(source, [-1]), Unsqueeze(Range(0, Squeeze(Shape(input)), 1) * size) + offsets)

    and it stays unless it is certain that its indices are those of all elements, in order:
    1. It gathers along the first axis, from all elements of the source in one row.
    2. The offsets of shape [1, ...] are 0, 1, 2 and so on: `size` of them, which is what the images' numbers are
       multiplied by. These lie along the first of as many axes.
    3. The images' numbers are 0, 1, 2 and so on, as many as the first axis of an input of the model is long.
    4. The source has as many images as that input, each of `size` elements.
    """
    found = [(node, copied) for node in find_nodes(model, "Gather") if (copied := _copied_by(node, model.graph.inputs))]
    insert = Inserter(model)
    for node, (source, shape) in found:
        turn_into(node, "Reshape", [source, insert.constant(node, f"{node.outputs[0].name}.shape", shape)])
    return bool(found)


def _copied_by(gather: ir.Node, model_inputs: Values) -> tuple[ir.Value, list[int]] | None:
    """Return what a Gather copies, and the shape of the copy. The numbers are the cases above."""
    source, whole = _inputs_of(gather.inputs[0], "Reshape")
    column, offsets = _constant_last(_inputs_of(gather.inputs[1], "Add"))
    firsts, axes = _inputs_of(column, "Unsqueeze")
    numbers, factor = _constant_last(_inputs_of(firsts, "Mul"))
    start, count, step = _inputs_of(numbers, "Range", 3)
    length, _ = _inputs_of(count, "Squeeze")
    counted, _ = _inputs_of(length, "Shape")
    known = ir.convenience.get_const_tensor(offsets) if offsets else None
    maker, images, fed = length.producer() if length else None, sizes_of(source), sizes_of(counted)
    if not (source and known and maker and images and fed and counted in model_inputs) or known.shape[:1] != (1,):
        return None
    shape, size, span = known.shape.numpy(), known.size, settings_of(maker) or {}
    along, added = gather.attributes.get("axis"), constant_of(axes) or []
    is_known = isinstance(images[0], int) or images[0].value is not None
    holds = (
        (along is None or along.value == 0) and constant_of(whole) == [-1],  # 1
        constant_of(offsets) == list(range(size)) and constant_of(factor) == [size],  # 2
        sorted(axis % len(shape) for axis in added) == list(range(1, len(shape))),  # 2
        constant_of(start) == [0] and constant_of(step) == [1],  # 3
        span.get("start", 0) == 0 and span.get("end") == 1,  # 3
        is_known and images[0] == fed[0],  # 4
        all(isinstance(each, int) for each in images[1:]) and math.prod(images[1:]) == size,  # 4
    )
    return (source, [-1, *shape[1:]]) if all(holds) else None


def _inputs_of(value: ir.Value | None, op_type: str, count: int = 2) -> Values:
    """Return so many inputs of the node that makes a tensor: None for those that it lacks, or that another has."""
    node = value.producer() if value else None
    found = node.inputs if node and node.op_type == op_type and node.domain == "" else ()
    return [*found, *[None] * count][:count]


def _constant_last(values: Values) -> Values:
    return sorted(values, key=lambda value: constant_of(value) is not None)
