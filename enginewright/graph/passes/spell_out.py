import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from enginewright.graph.passes.find import add_constant, find_nodes, names_in_use, unused_name


class SpellOutHardSwish(ir.passes.InPlacePass):
    """Turn each HardSwish into a HardSigmoid and a product, which compute the same.

    NVIDIA's parser refuses HardSwish in bf16, and accepts the other two.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        swishes = find_nodes(model, "HardSwish")
        taken = names_in_use(model) if swishes else set()
        for node in swishes:
            gate = ir.val(unused_name(f"{node.outputs[0].name}.gate", taken))
            slopes = {"alpha": 1 / 6, "beta": 0.5}
            node.prepend(
                ir.node(
                    "HardSigmoid", node.inputs, slopes, outputs=[gate], name=f"{node.name or node.outputs[0].name}.gate"
                )
            )
            node.op_type = "Mul"
            node.resize_inputs(2)
            node.replace_input_with(1, gate)
        return ir.passes.PassResult(model, modified=bool(swishes))


LONGEST = 2048  # numbers of a transform: its matrix grows by the square
REAL, COMPLEX = 1, 2  # the sizes of the last axis
AXIS_IS_AN_INPUT = 20  # from this opset on


class SpellOutDft(ir.passes.InPlacePass):
    """Turn each Fourier transform of a known length into a product with its matrix.

    OpenVINO reads the axis of a DFT of opset 20 as the first after the batch, whatever it is, and gives one that is
    one-sided an axis more.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        is_known = model.opset_imports.get("", 1) >= AXIS_IS_AN_INPUT
        found = [(node, sizes) for node in find_nodes(model, "DFT") if is_known and (sizes := _sizes(node))]
        taken = names_in_use(model) if found else set()
        for node, sizes in found:
            _spell_out(model, node, sizes, taken)
        return ir.passes.PassResult(model, modified=bool(found))


def _sizes(node: ir.Node) -> tuple[int, int, int, int, int] | None:
    """Return rank, axis, numbers that are read, length of the transform, and whether they are real or complex."""
    given, length, axis = (*node.inputs, None, None)[:3]
    is_known = all(each is None or each.const_value is not None for each in (length, axis))
    if given is None or given.shape is None or given.dtype is None or not is_known:
        return None
    rank = len(given.shape)
    where = -2 if axis is None else _integer(axis)
    where %= rank
    read, kind = given.shape[where], given.shape[-1]
    if not isinstance(read, int) or not isinstance(kind, int):
        return None
    whole = read if length is None else _integer(length)
    return (rank, where, read, whole, kind) if max(read, whole) <= LONGEST else None


def _integer(value: ir.Value) -> int:
    assert value.const_value is not None
    return int(value.const_value.numpy().reshape(-1)[0])


def _spell_out(model: ir.Model, node: ir.Node, sizes: tuple[int, int, int, int, int], taken: set[str]) -> None:
    rank, axis, read, whole, kind = sizes
    flags = [name in node.attributes and bool(node.attributes[name].as_int()) for name in ("inverse", "onesided")]
    matrix = _matrix(read, whole, kind, *flags)
    order = [*(each for each in range(rank - 1) if each != axis), axis, rank - 1]
    value = node.inputs[0]
    assert value is not None
    assert value.dtype is not None
    matrix = matrix.astype(value.dtype.numpy())
    steps: list[tuple[str, ArrayLike | None, dict[str, list[int]]]] = [
        ("Transpose", None, {"perm": order}),
        ("Reshape", [0] * (rank - 2) + [read * kind], {}),
        ("MatMul", matrix.reshape(read * kind, -1), {}),
        ("Reshape", [0] * (rank - 2) + list(matrix.shape[2:]), {}),
    ]
    name = node.outputs[0].name
    for number, (operator, constant, attributes) in enumerate(steps):
        made = ir.val(unused_name(f"{name}.{number}", taken))
        label = unused_name(f"{name}.constant{number}", taken)
        given = [value] if constant is None else [value, add_constant(model, node, label, constant)]
        node.prepend(ir.node(operator, given, attributes, outputs=[made], name=made.name))
        value = made
    node.op_type = "Transpose"
    node.attributes.clear()
    node.attributes["perm"] = ir.AttrInt64s("perm", np.argsort(order).tolist())
    node.resize_inputs(1)
    node.replace_input_with(0, value)


def _matrix(read: int, whole: int, kind: int, inverse: bool, onesided: bool) -> NDArray[Any]:
    """Return what the transform makes of each number alone, by the number, its parts, the result, and its parts."""
    numbers = np.eye(read)[:, None] * np.array([1, 1j][:kind]).reshape(1, kind, 1)
    match inverse, onesided:
        case True, True:
            return np.asarray(np.fft.irfft(numbers, whole)[..., None])
        case True, False:
            found = np.fft.ifft(numbers, whole)
        case False, True:
            found = np.fft.fft(numbers, whole)[..., : whole // 2 + 1]
        case _:
            found = np.fft.fft(numbers, whole)
    return np.stack([found.real, found.imag], -1)


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
            _spell_out_col2im(model, node, sizes, taken)
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


def _spell_out_col2im(model: ir.Model, node: ir.Node, sizes: _Sizes, taken: set[str]) -> None:
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
