"""Write int8 for CPUs: Q/DQ nodes around the tensors that `placement` finds, and weights as bytes. A search tries
layers in fp8 the same way."""

from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from typing_extensions import Self

from enginewright.core.facts import PRECISIONS
from enginewright.data.feeds import TINY
from enginewright.graph.onnx_file import OLDEST_OPSET, at_opset
from enginewright.graph.passes.find import Inserter, remove_unused
from enginewright.graph.shapes import as_ir
from enginewright.precision.placement import Group, Placement, array_of, has_rows, read_by_channel

LARGEST = PRECISIONS["int8"].largest
LEVELS = 255  # the steps of a byte
MOSTLY_POSITIVE = 4  # times as far as it reaches below zero: what HardSwish, SiLU and GELU return
SLOWER_WITH_A_ZERO = {"Add", "MatMul"}  # where the byte 0 does not stand for 0
SMALLEST_CHANNEL = 0.01  # of the largest
FIRST_OF_FLOATS = 19  # the first opset of Q/DQ nodes of float16 and float8

Rounded = Mapping[str, NDArray[np.int8]]  # by the name of the weights


class Bounds(NamedTuple):
    lowest: float  # 0 if nothing is negative
    amax: float  # the largest magnitude that is not clipped
    channels: NDArray[np.float64] | None = None  # the lowest and the largest number of each channel, where they count


class Grid(NamedTuple):
    """The numbers that bytes stand for: of a tensor, or of each of its channels."""

    scale: float | NDArray[np.float64]
    zero: np.generic | NDArray[np.generic]


def grid_of(ranges: Iterable[Bounds], is_added: bool) -> Grid:
    """Return the finest grid that costs no speed: unsigned where nothing, or little, is negative."""
    lowest, largest = map(max, zip(*((-each.lowest, each.amax) for each in ranges), strict=True))
    amax, below = max(largest, TINY), min(lowest, largest)
    if below <= 0:
        return Grid(amax / LEVELS, np.uint8(0))
    if below * MOSTLY_POSITIVE <= amax and not is_added:
        scale = (amax + below) / LEVELS
        return Grid(scale, np.uint8(round(below / scale)))
    return Grid(amax / LARGEST, np.int8(0))


def grid_of_channels(channels: NDArray[np.float64]) -> Grid:
    """Return the same for each channel. One that was hardly seen may reach further on other samples."""
    lowest, highest = np.minimum(channels[0], 0), np.maximum(channels[1], 0)
    whole = grid_of([Bounds(float(lowest.min()), float(np.abs(channels).max()))], is_added=False)
    least = max(SMALLEST_CHANNEL * float(np.abs(channels).max()), TINY)
    if whole.zero.dtype == np.int8:
        scale = np.maximum(np.maximum(highest, -lowest), least) / LARGEST
        return Grid(scale, np.zeros(len(scale), np.int8))
    scale = np.maximum(highest - lowest, least) / LEVELS
    return Grid(scale, np.rint(-lowest / scale).astype(np.uint8))


class Rounding(NamedTuple):
    """Say what is rounded in a graph, and how."""

    ranges: Mapping[str, Bounds]
    kept: frozenset[str] = frozenset()  # the nodes that are in floating point
    largest: int = LARGEST  # number that stands for a weight
    rounded: Mapping[str, NDArray[np.int8]] = {}  # weights that are rounded already; others take the nearest byte
    precision: str = "int8"
    exact_sums: bool = True  # a sum takes what a Conv makes for it alone before that is rounded

    def sparing(self, names: Iterable[str]) -> Self:
        return self._replace(kept=self.kept.union(names))


def write_int8(model: onnx.ModelProto, how: Rounding) -> onnx.ModelProto:
    """Return a copy that calculates in int8."""
    writer = Writer(model, how.kept, exact_sums=how.exact_sums)
    for node in writer.placement.products:
        writer.round_weights(node, how)
    for group in writer.groups:
        grid = writer.grid_for(group, how.ranges)
        if np.any(grid.zero) and writer.have_biases(group):
            writer.move_zero(group, grid)
        else:
            writer.round_activations(group, grid)
    remove_unused(writer.model)  # such as weights that are bytes now
    return ir.to_proto(writer.model)


def tensors_in_int8(model: onnx.ModelProto, kept: Collection[str] = (), exact_sums: bool = True) -> list[str]:
    """Return the activations that need a range."""
    return [name for group in Writer(model, kept, exact_sums=exact_sums).groups for name in names_of(group)]


def names_of(group: Group) -> list[str]:
    return [value.name or "" for value in group]


def dtype_of(value: ir.Value) -> np.dtype[np.generic]:
    return np.dtype((value.dtype or ir.DataType.FLOAT).numpy())


class Writer:
    """A copy of a graph, into which Q/DQ nodes are written."""

    def __init__(
        self, model: onnx.ModelProto, kept: Collection[str] = (), precision: str = "int8", exact_sums: bool = True
    ) -> None:
        self._bytes: np.dtype[np.generic] = np.dtype(np.int8 if precision == "int8" else ml_dtypes.float8_e4m3fn)
        has_halves = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)
        self.model = as_ir(at_opset(model, FIRST_OF_FLOATS if has_halves or precision == "fp8" else OLDEST_OPSET))
        self.placement = Placement(self.model, kept, exact_sums)
        self.groups = self.placement.groups()
        self.by_channel = {name for group in self.groups if read_by_channel(group) for name in names_of(group)}
        self._add = Inserter(self.model)
        self._sums: dict[ir.Node, NDArray[np.float64]] = {}  # of each output's weights, as rounded

    def grid_for(self, group: Group, ranges: Mapping[str, Bounds]) -> Grid:
        """Return the grid that the tensors of a group share."""
        given = [ranges[name] for name in names_of(group)]
        if self._bytes != np.int8:
            return Grid(max(TINY, *(each.amax for each in given)) / PRECISIONS["fp8"].largest, self._bytes.type(0))
        if given[0].channels is not None and self.by_channel.issuperset(names_of(group)):
            return grid_of_channels(given[0].channels)
        return grid_of(given, self.are_added(group))

    def are_added(self, group: Group) -> bool:
        """Tell whether something that reads these tensors is slower where the byte 0 does not stand for 0."""
        readers = [node for each in group.values() for node, _ in each]
        return any(node.op_type in SLOWER_WITH_A_ZERO for node in readers) and not self.have_biases(group)

    def have_biases(self, group: Group) -> bool:
        """Tell whether all that read these tensors are products with a bias behind."""
        return all(node in self.placement.biases for readers in group.values() for node, _ in readers)

    def round_activations(
        self, group: Group, grid: Grid, subtracted: np.generic | None = None
    ) -> tuple[ir.Value, ir.Value]:
        """Write a Q/DQ pair behind each tensor of the group, for those that read it as bytes. Return scale and zero.
        The zero is subtracted again, or what is given instead. Scales of channels lie along Q/DQ nodes' own axis, 1."""
        first, [(reader, _), *_] = next(iter(group.items()))
        scale = self._add.constant(reader, f"{first.name}.scale", np.asarray(grid.scale, dtype_of(first)))
        zero = back = self._add.constant(reader, f"{first.name}.zero", grid.zero)
        if subtracted is not None:
            back = self._add.constant(reader, f"{first.name}.subtracted", subtracted)
        for value, readers in group.items():
            as_bytes = self._add.behind(value, "QuantizeLinear", [value, scale, zero], f"{value.name}.int8")
            rounded = self._add.behind(as_bytes, "DequantizeLinear", [as_bytes, scale, back], f"{value.name}.rounded")
            for node, index in readers:
                node.replace_input_with(index, rounded)
        return scale, zero

    def move_zero(self, group: Group, grid: Grid) -> None:
        """Round activations without a zero to subtract at run time: W(x - zero) + bias is Wx + (bias - W zero)."""
        self.round_activations(group, grid, np.asarray(grid.zero).dtype.type(0))
        below = grid.scale * float(np.asarray(grid.zero))
        for node, _ in chain.from_iterable(group.values()):
            add, place = self.placement.biases[node]
            array = array_of(add.inputs[place])
            moved = array - (below * self._sums[node]).astype(array.dtype)
            add.replace_input_with(place, self._add.constant(add, f"{add.name}.moved", moved))

    def round_weights(self, node: ir.Node, how: Rounding) -> None:
        """Read constant weights from bytes, with a scale for each output channel."""
        weights = node.inputs[1]
        if weights is None or weights.const_value is None:
            return
        array = weights.const_value.numpy()
        axis = output_channels(node, array.ndim)
        scales = weight_scales(array, axis, how.largest)
        exact = array / scales
        nearest = (np.rint(exact) if self._bytes == np.int8 else exact).astype(self._bytes)
        steps = how.rounded.get(weights.name or "", nearest)
        if node in self.placement.biases:
            self._sums[node] = (steps * scales).sum(axis=0, dtype=np.float64)
        given = [
            self._add.constant(node, f"{weights.name}.int8", steps),
            self._add.constant(node, f"{weights.name}.scale", scales.reshape(-1).astype(array.dtype)),
            self._add.constant(node, f"{weights.name}.zero", np.zeros(array.shape[axis], self._bytes)),
        ]
        made = self._add.node(node, "DequantizeLinear", given, f"{weights.name}.rounded", axis=axis)
        node.replace_input_with(1, made)


def weight_scales(array: NDArray[np.generic], axis: int, largest: int) -> NDArray[np.float32]:
    """Return the step of each channel along an axis."""
    others = tuple(each for each in range(array.ndim) if each != axis)
    widest = np.abs(array.astype(np.float32)).max(axis=others, keepdims=True)
    return np.asarray(np.maximum(widest, TINY) / largest)


def output_channels(node: ir.Node, rank: int) -> int:
    """Return the axis of the weights that the output's channels lie along."""
    match node.op_type:
        case "Conv":
            return 0
        case "ConvTranspose":
            return 1
        case "Gemm" if has_rows(node):
            return 0
        case _:
            return rank - 1
