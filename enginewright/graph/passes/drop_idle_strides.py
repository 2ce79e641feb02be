from collections.abc import Iterator

import onnx_ir as ir

from enginewright.graph.passes.find import find_nodes


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
