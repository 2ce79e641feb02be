import math
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from enginewright.graph.passes.constants import add_constant
from enginewright.graph.passes.find import find_nodes, names_in_use, unused_name

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


class SpellOutCol2Im(ir.passes.InPlacePass):
    """Turn each Col2Im into a transposed convolution, whose kernels hold a single one each: it computes the same.

    NVIDIA's parser does not know Col2Im, which `torch.nn.functional.fold` becomes. A Col2Im stays as it is where the
    size of the image or of a block is not known.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [(node, sizes) for node in find_nodes(model, "Col2Im") if (sizes := _read(node))]
        taken = names_in_use(model) if found else set()
        for node, sizes in found:
            _spell_out(model, node, sizes, taken)
        return ir.passes.PassResult(model, modified=bool(found))


class _Axis(NamedTuple):
    """Say how blocks lie along one axis of the image."""

    image: int
    block: int
    stride: int
    dilation: int
    before: int  # how much padding
    behind: int

    @property
    def reach(self) -> int:
        return self.dilation * (self.block - 1) + 1

    @property
    def places(self) -> int:
        return (self.before + self.image + self.behind - self.reach) // self.stride + 1

    @property
    def covered(self) -> int:
        """Return the length from the edge of the image to the end of the last block."""
        return self.stride * (self.places - 1) + self.reach - self.before

    @property
    def added(self) -> int:
        """Return how many empty places reach the end of the image, where the last block does not."""
        return math.ceil(max(0, self.image - self.covered) / self.stride)


class _Sizes(NamedTuple):
    channels: int
    axes: list[_Axis]

    def block(self) -> list[int]:
        return [axis.block for axis in self.axes]

    def settings(self) -> dict[str, list[int]]:
        """Return the attributes of the transposed convolution."""
        behind = [axis.covered + axis.stride * axis.added - axis.image for axis in self.axes]
        return {
            "strides": [axis.stride for axis in self.axes],
            "dilations": [axis.dilation for axis in self.axes],
            "pads": [*(axis.before for axis in self.axes), *behind],
        }


def _read(node: ir.Node) -> _Sizes | None:
    """Return the sizes of a Col2Im, or None where one is not known."""
    columns, image, block = node.inputs[0], _integers(node.inputs[1]), _integers(node.inputs[2])
    if columns is None or columns.shape is None or columns.dtype not in FLOATS or not image or not block:
        return None
    numbers = columns.shape[1]  # of each column
    if not isinstance(numbers, int) or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    given = {name: list(attribute.as_ints()) for name, attribute in node.attributes.items()}
    ones, zeros = [1] * len(image), [0] * len(image)
    strides, dilations, pads = given.get("strides", ones), given.get("dilations", ones), given.get("pads", zeros * 2)
    sides = pads[: len(image)], pads[len(image) :]
    axes = [_Axis(*each) for each in zip(image, block, strides, dilations, *sides, strict=True)]
    return _Sizes(numbers // math.prod(block), axes)


def _integers(value: ir.Value | None) -> list[int]:
    constant = ir.convenience.get_const_tensor(value) if value is not None else None
    return [] if constant is None else [int(size) for size in constant.numpy()]


def _spell_out(model: ir.Model, node: ir.Node, sizes: _Sizes, taken: set[str]) -> None:
    columns, own = node.inputs[0], node.outputs[0].name
    assert columns is not None
    assert columns.dtype is not None

    def prepend(op_type: str, value: ir.Value, name: str, integers: list[int]) -> ir.Value:
        made, said = ir.val(unused_name(f"{own}.{name}", taken)), unused_name(f"{own}.{name}_by", taken)
        inputs = [value, add_constant(model, node, said, integers)]
        node.prepend(ir.node(op_type, inputs, outputs=[made], name=f"{node.name or own}.{name}"))
        return made

    placed = prepend("Reshape", columns, "placed", [0, 0, *(axis.places for axis in sizes.axes)])
    if any(added := [axis.added for axis in sizes.axes]):
        placed = prepend("Pad", placed, "padded", [0] * (4 + len(added)) + added)
    block = sizes.block()
    one_each = np.eye(math.prod(block), dtype=columns.dtype.numpy()).reshape(-1, 1, *block)
    kernel = np.concatenate([one_each] * sizes.channels)
    node.op_type = "ConvTranspose"
    node.attributes.clear()
    node.attributes.update({name: ir.AttrInt64s(name, numbers) for name, numbers in sizes.settings().items()})
    node.attributes["group"] = ir.AttrInt64("group", sizes.channels)
    node.resize_inputs(2)
    node.replace_input_with(0, placed)
    node.replace_input_with(1, add_constant(model, node, unused_name(f"{own}.kernel", taken), kernel))
