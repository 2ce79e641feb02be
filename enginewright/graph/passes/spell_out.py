"""Write operators that a compiler lacks or mistakes as others, which compute the same."""

import math
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike, NDArray

from enginewright.graph.passes.find import Inserter, constant_of, find_nodes, settings_of, sizes_of, turn_into


def spell_out_hard_swish(model: ir.Model) -> bool:
    """Turn each HardSwish into a HardSigmoid and a product.

    NVIDIA's parser refuses HardSwish in bf16, and accepts the other two.
    """
    insert, found = Inserter(model), find_nodes(model, "HardSwish")
    for node in found:
        own = node.outputs[0].name
        name = f"{node.name or own}.gate"
        gate = insert.node(node, "HardSigmoid", node.inputs, f"{own}.gate", name, alpha=1 / 6, beta=0.5)
        turn_into(node, "Mul", [node.inputs[0], gate])
    return bool(found)


# Fourier transforms

LONGEST = 2048  # numbers of a transform: its matrix grows by the square
AXIS_IS_AN_INPUT = 20  # from this opset on


def spell_out_dft(model: ir.Model) -> bool:
    """Turn each Fourier transform of a known length into a product with its matrix.

    OpenVINO reads the axis of a DFT of opset 20 as the first after the batch, whatever it is, and gives one that is
    one-sided an axis more.
    """
    if model.opset_imports.get("", 1) < AXIS_IS_AN_INPUT:
        return False
    insert = Inserter(model)
    return sum(_spell_out_dft(node, insert) for node in find_nodes(model, "DFT")) > 0


def _spell_out_dft(node: ir.Node, insert: Inserter) -> bool:
    """Do so where the sizes are known: how many numbers are read, and whether they are real (1) or complex (2)."""
    value, length, along = (*node.inputs, None, None)[:3]
    whole, axis = constant_of(length), constant_of(along) if along else [-2]
    sizes = sizes_of(value)
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
    value = insert.node(node, "Transpose", [value], f"{own}.0", f"{own}.0", perm=order)
    steps: list[tuple[str, ArrayLike]] = [
        ("Reshape", [0] * (rank - 2) + [read * kind]),
        ("MatMul", matrix.reshape(read * kind, -1)),
        ("Reshape", [0] * (rank - 2) + list(matrix.shape[2:])),
    ]
    for number, (operator, array) in enumerate(steps, 1):
        constant = insert.constant(node, f"{own}.constant{number}", array)
        value = insert.node(node, operator, [value, constant], f"{own}.{number}", f"{own}.{number}")
    turn_into(node, "Transpose", [value], perm=np.argsort(order).tolist())
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


# Blocks that are put together to an image

FLOATS = {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE}


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


def spell_out_col2im(model: ir.Model) -> bool:
    """Turn each Col2Im into a transposed convolution, whose kernels hold a single one each.

    NVIDIA's parser does not know Col2Im, which `torch.nn.functional.fold` becomes. A Col2Im stays as it is where the
    size of the image or of a block is not known.
    """
    insert = Inserter(model)
    return sum(_spell_out_col2im(node, insert) for node in find_nodes(model, "Col2Im")) > 0


def _spell_out_col2im(node: ir.Node, insert: Inserter) -> bool:
    columns, image, block = node.inputs[0], constant_of(node.inputs[1]), constant_of(node.inputs[2])
    settings, own = settings_of(node), node.outputs[0].name
    if columns is None or columns.shape is None or columns.dtype not in FLOATS or not image or not block:
        return False
    numbers = columns.shape[1]  # of each column
    if not isinstance(numbers, int) or settings is None:
        return False
    rank, name = len(image), node.name or own
    strides, dilations = settings.get("strides", [1] * rank), settings.get("dilations", [1] * rank)
    pads = settings.get("pads", [0] * 2 * rank)
    axes = [_Axis(*each) for each in zip(image, block, strides, dilations, pads[:rank], pads[rank:], strict=True)]
    by = insert.constant(node, f"{own}.placed_by", [0, 0, *(axis.places for axis in axes)])
    placed = insert.node(node, "Reshape", [columns, by], f"{own}.placed", f"{name}.placed")
    if any(added := [axis.added for axis in axes]):
        by = insert.constant(node, f"{own}.padded_by", [0] * (4 + rank) + added)
        placed = insert.node(node, "Pad", [placed, by], f"{own}.padded", f"{name}.padded")
    channels = numbers // math.prod(block)
    one_each = np.eye(math.prod(block), dtype=columns.dtype.numpy()).reshape(-1, 1, *block)
    kernel = insert.constant(node, f"{own}.kernel", np.concatenate([one_each] * channels))
    behind = [axis.covered + axis.stride * axis.added - axis.image for axis in axes]
    turn_into(
        node,
        "ConvTranspose",
        [placed, kernel],
        strides=[axis.stride for axis in axes],
        dilations=[axis.dilation for axis in axes],
        pads=[*(axis.before for axis in axes), *behind],
        group=channels,
    )
    return True
