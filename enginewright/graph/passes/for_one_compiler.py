"""The passes for one compiler, which lacks an operator, mistakes it, or is faster with another."""

import math
from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from enginewright.graph.passes import find

CHANNELS, IMAGE_RANK = 1, 4
PAD_AMOUNTS_ARE_AN_INPUT = 11  # from this opset on; before it, Pad takes its amounts as an attribute
DFT_AXIS_IS_AN_INPUT = 20
PASSING = ("QuantizeLinear", "DequantizeLinear", "Cast")
LONGEST = 2048  # numbers of a transform: its matrix grows by the square
FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


def count_axes_from_end(model: ir.Model) -> bool:
    """Count the axis of channels from the end where a Gather puts them in another order.

    OpenVINO 2026.4 moves such an order into the weights of the Conv that follows, and moves it the wrong way around, in
    float32 as well: any order is lost that is not its own inverse. It knows the axis by a number that is not negative.
    """
    modified = False
    for node in find.find_nodes(model, "Gather"):
        axis, order, rank = node.attributes.get("axis"), node.inputs[1], len(find.sizes_of(node.inputs[0]))
        is_list = order is not None and order.const_value is not None and len(order.const_value.shape) == 1
        if axis is not None and axis.value == CHANNELS and is_list and rank > CHANNELS + 1:
            node.attributes["axis"] = ir.AttrInt64("axis", CHANNELS - rank)
            modified = True
    return modified


def pad_before_pooling(model: ir.Model) -> bool:
    """Turn the padding of an AveragePool into a Pad node, where the average counts the padded zeros.

    OpenVINO's average in int8 is wrong at such an edge.
    """
    pools = ((node, find.settings_of(node) or {}) for node in find.find_nodes(model, "AveragePool"))
    counting = ((node, how) for node, how in pools if how.get("count_include_pad") == 1 and not how.get("ceil_mode"))
    found = [node for node, how in counting if any(how.get("pads", ()))]
    insert = find.Inserter(model)
    for node in found:
        pads, own = node.attributes.pop("pads").as_ints(), node.outputs[0].name
        del node.attributes["count_include_pad"]
        half = len(pads) // 2
        amounts = [0, 0, *pads[:half], 0, 0, *pads[half:]]
        inputs, attributes = [node.inputs[0]], {"pads": amounts}
        if model.opset_imports.get("", 1) >= PAD_AMOUNTS_ARE_AN_INPUT:
            inputs, attributes = [*inputs, insert.constant(node, f"{own}.padded.pads", amounts)], {}
        padded = insert.node(node, "Pad", inputs, f"{own}.padded", f"{node.name or own}.pad", **attributes)
        find.replace_inputs(node, [padded])
    return bool(found)


def drop_idle_strides(model: ir.Model) -> bool:
    """Give a Conv a stride of one along each axis where its kernel stands at a single place.

    On a CPU with AMX, oneDNN computes a strided convolution wrongly in bf16 and int8 if it makes a single column,
    and rightly with a stride of one. OpenVINO runs oneDNN's kernels.
    """
    found = [(node, axis, unread) for node in find.find_nodes(model, "Conv") for axis, unread in _idle_axes(node)]
    for node, axis, unread in found:
        strides, pads = (list(node.attributes[name].as_ints()) for name in ("strides", "pads"))
        strides[axis], pads[len(strides) + axis] = 1, pads[len(strides) + axis] - unread
        node.attributes["strides"] = ir.AttrInt64s("strides", strides)
        node.attributes["pads"] = ir.AttrInt64s("pads", pads)
    return bool(found)


def _idle_axes(node: ir.Node) -> Iterator[tuple[int, int]]:
    """Yield each axis with a stride and one place, and how much of the padding behind it the kernel does not reach."""
    images, kernel, settings = (
        find.sizes_of(node.inputs[0])[2:],
        find.sizes_of(node.inputs[1])[2:],
        find.settings_of(node) or {},
    )
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


def pool_for_mean(model: ir.Model) -> bool:
    """Turn the mean of an image's pixels into a GlobalAveragePool.

    ModelOpt lets that one read bytes. On an H200, TensorRT 10.6 left the last sum of ResNet-50 in float16 in front of a
    ReduceMean, and changed types and layouts around it.
    """
    found = [node for node in find.find_nodes(model, "ReduceMean") if _averages_pixels(node)]
    for node in found:
        find.turn_into(node, "GlobalAveragePool", [node.inputs[0]])
    return bool(found)


def _averages_pixels(node: ir.Node) -> bool:
    if len(find.sizes_of(node.inputs[0])) != IMAGE_RANK or node.attributes.get_int("keepdims", 1) != 1:
        return False
    axes = find.constant_of(node.inputs[1]) if len(node.inputs) > 1 else (find.settings_of(node) or {}).get("axes")
    return sorted(axis % IMAGE_RANK for axis in axes or ()) == [2, 3]


def spell_out_hard_swish(model: ir.Model) -> bool:
    """Turn each HardSwish into a HardSigmoid and a product.

    NVIDIA's parser refuses HardSwish in bf16, and accepts the other two.
    """
    insert, found = find.Inserter(model), find.find_nodes(model, "HardSwish")
    for node in found:
        own = node.outputs[0].name
        name = f"{node.name or own}.gate"
        gate = insert.node(node, "HardSigmoid", node.inputs, f"{own}.gate", name, alpha=1 / 6, beta=0.5)
        find.turn_into(node, "Mul", [node.inputs[0], gate])
    return bool(found)


def spell_out_dft(model: ir.Model) -> bool:
    """Turn each Fourier transform of a known length into a product with its matrix.

    OpenVINO reads the axis of a DFT of opset 20 as the first after the batch, whatever it is, and gives one that is
    one-sided an axis more.
    """
    if model.opset_imports.get("", 1) < DFT_AXIS_IS_AN_INPUT:
        return False
    insert = find.Inserter(model)
    return sum(_spell_out_dft(node, insert) for node in find.find_nodes(model, "DFT")) > 0


def _spell_out_dft(node: ir.Node, insert: find.Inserter) -> bool:
    """Do so where the sizes are known: how many numbers are read, and whether they are real (1) or complex (2)."""
    value, length, along = (*node.inputs, None, None)[:3]
    whole, axis = find.constant_of(length), find.constant_of(along) if along else [-2]
    sizes = find.sizes_of(value)
    if not sizes or value is None or value.dtype is None or axis is None or (length and whole is None):
        return False
    rank = len(sizes)
    read, kind = sizes[axis[0] % rank], sizes[-1]
    if not isinstance(read, int) or not isinstance(kind, int) or max([read, *(whole or [])]) > LONGEST:
        return False
    inverse, onesided = (
        name in node.attributes and bool(node.attributes[name].as_int()) for name in ("inverse", "onesided")
    )
    matrix = _matrix(read, whole[0] if whole else read, kind, inverse, onesided).astype(value.dtype.numpy())
    order = [*(each for each in range(rank - 1) if each != axis[0] % rank), axis[0] % rank, rank - 1]
    own = node.outputs[0].name
    value = insert.node(node, "Transpose", [value], f"{own}.0", perm=order)
    steps: list[tuple[str, ArrayLike]] = [
        ("Reshape", [0] * (rank - 2) + [read * kind]),
        ("MatMul", matrix.reshape(read * kind, -1)),
        ("Reshape", [0] * (rank - 2) + list(matrix.shape[2:])),
    ]
    for number, (operator, array) in enumerate(steps, 1):
        constant = insert.constant(node, f"{own}.constant{number}", array)
        value = insert.node(node, operator, [value, constant], f"{own}.{number}")
    find.turn_into(node, "Transpose", [value], perm=np.argsort(order).tolist())
    return True


def _matrix(read: int, whole: int, kind: int, inverse: bool, onesided: bool) -> NDArray[Any]:
    """Return what the transform makes of each number alone, by the number, its parts, the result, and its parts."""
    numbers = np.eye(read)[:, None] * np.array([1, 1j][:kind]).reshape(1, kind, 1)
    if inverse and onesided:
        return np.asarray(np.fft.irfft(numbers, whole)[..., None])
    found = np.fft.ifft(numbers, whole) if inverse else np.fft.fft(numbers, whole)
    if onesided:
        found = found[..., : whole // 2 + 1]
    return np.stack([found.real, found.imag], -1)


def spell_out_col2im(model: ir.Model) -> bool:
    """Turn each Col2Im into a transposed convolution, whose kernels hold a single one each.

    NVIDIA's parser does not know Col2Im, which `torch.nn.functional.fold` becomes. A Col2Im stays as it is where the
    size of the image or of a block is not known.
    """
    insert = find.Inserter(model)
    return sum(_spell_out_col2im(node, insert) for node in find.find_nodes(model, "Col2Im")) > 0


def _spell_out_col2im(node: ir.Node, insert: find.Inserter) -> bool:
    columns, image, block = node.inputs[0], find.constant_of(node.inputs[1]), find.constant_of(node.inputs[2])
    settings, own = find.settings_of(node), node.outputs[0].name
    if columns is None or columns.shape is None or columns.dtype not in FLOATS or not image or not block:
        return False
    numbers = columns.shape[1]  # of each column
    if not isinstance(numbers, int) or settings is None:
        return False
    rank, name = len(image), node.name or own
    sizes, blocks, one = np.array(image), np.array(block), [1] * rank
    strides, dilations = (np.array(settings.get(each, one)) for each in ("strides", "dilations"))
    before, behind = np.array(settings.get("pads", [0] * 2 * rank)).reshape(2, rank)
    reach = dilations * (blocks - 1) + 1  # of a block
    places = (before + sizes + behind - reach) // strides + 1
    covered = strides * (places - 1) + reach - before  # from the edge of the image to the end of the last block
    added = -(-np.maximum(0, sizes - covered) // strides)  # empty places that reach the end of the image
    by = insert.constant(node, f"{own}.placed_by", [0, 0, *places])
    placed = insert.node(node, "Reshape", [columns, by], f"{own}.placed", f"{name}.placed")
    if any(added):
        by = insert.constant(node, f"{own}.padded_by", [0] * (4 + rank) + added.tolist())
        placed = insert.node(node, "Pad", [placed, by], f"{own}.padded", f"{name}.padded")
    channels, singles = numbers // math.prod(block), np.eye(math.prod(block), dtype=columns.dtype.numpy())
    kernel = np.concatenate([singles.reshape(-1, 1, *block)] * channels)
    find.turn_into(
        node,
        "ConvTranspose",
        [placed, insert.constant(node, f"{own}.kernel", kernel)],
        strides=strides.tolist(),
        dilations=dilations.tolist(),
        pads=[*before.tolist(), *(covered + strides * added - sizes).tolist()],
        group=channels,
    )
    return True


# A tuned build tries these, which may be faster on one GPU and slower on another. No part of a graph computes coarser.


def last_product_as_conv(model: ir.Model) -> bool:
    """Turn a Gemm that reads pooled pixels into a Conv of one by one, as NVIDIA's ResNet-50 of MLPerf has it."""
    insert = find.Inserter(model)
    return sum(_turn_into_conv(node, insert) for node in find.find_nodes(model, "Gemm")) > 0


def _turn_into_conv(node: ir.Node, insert: find.Inserter) -> bool:
    settings, passed, weights = find.settings_of(node) or {}, [*_behind(node.inputs[0])], [*_behind(node.inputs[1])]
    flat, stored = passed[-1].producer(), weights[-1]
    known = stored.const_value is not None and len(stored.const_value.shape) == 2 and len(stored.uses()) == 1
    plain = settings.get("transB") == 1 and all(settings.get(name, 1) == 1 for name in ("alpha", "beta"))
    pooled = flat.inputs[0] if flat is not None and flat.op_type in ("Flatten", "Reshape") else None
    if not (known and plain and find.sizes_of(pooled)[2:] == [1, 1] and all(len(each.uses()) == 1 for each in passed)):
        return False
    assert stored.const_value is not None
    kernel = stored.const_value.numpy()[:, :, np.newaxis, np.newaxis]
    for reader, place in tuple(stored.uses()):
        reader.replace_input_with(place, insert.constant(reader, f"{stored.name}.kernel", kernel))
    for reader, place in tuple(passed[-1].uses()):
        reader.replace_input_with(place, pooled)
    for value in (*passed[:-1], *weights[:-1]):
        value.shape = None
    product = insert.node(node, "Conv", node.inputs, f"{node.outputs[0].name}.pixels", f"{node.name}.conv")
    find.turn_into(node, "Flatten", [product], axis=1)
    return True


def _behind(value: ir.Value | None) -> Iterator[ir.Value]:
    """Yield a value, what it was before Q/DQ and Cast, and so on."""
    while value is not None:
        yield value
        maker = value.producer()
        value = maker.inputs[0] if maker is not None and maker.op_type in PASSING else None


def _in_floats(op_types: Collection[str], least_groups: int, model: ir.Model) -> bool:
    """Let these nodes read what is not rounded: bytes may cost more to make than they spare."""
    nodes = [node for name in op_types for node in find.find_nodes(model, name)]
    readers = [node for node in nodes if node.attributes.get_int("group", 1) >= least_groups]
    found = [(node, place, exact) for node in readers for place, exact in enumerate(map(_exact, node.inputs)) if exact]
    for node, place, exact in found:
        node.replace_input_with(place, exact)
    return bool(found)


def _exact(value: ir.Value | None) -> ir.Value | None:
    """Return what a value was before it was rounded, if that has its type."""
    back = value.producer() if value is not None else None
    rounding = back.inputs[0].producer() if back and back.op_type == "DequantizeLinear" and back.inputs[0] else None
    exact = rounding.inputs[0] if rounding is not None and rounding.op_type == "QuantizeLinear" else None
    return exact if exact is not None and value is not None and exact.dtype == value.dtype else None


TO_TRY: dict[str, find.Pass] = {
    "the last product as a convolution": last_product_as_conv,
    "grouped convolutions in floats": partial(_in_floats, ["Conv"], 2),
    "averages in floats": partial(_in_floats, ["AveragePool", "GlobalAveragePool"], 1),
    "sums in floats": partial(_in_floats, ["Add"], 1),
}
