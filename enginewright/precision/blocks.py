"""Round weights in blocks: numbers of a row, one after the other, that share a scale.

ModelOpt's int4 knows no weights in rows, and its search is slow without a GPU: docs/precisions.md compares the errors.
Its nvfp4 and mxfp8 are for graphs that its PyTorch half wrote. test_write_blocks.py holds the numbers against its own.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.graph.as_written import DOMAIN, FP4_QUANTIZE, MXFP8_DEQUANTIZE, MXFP8_QUANTIZE
from enginewright.graph.onnx_file import at_opset
from enginewright.graph.shapes import as_ir
from enginewright.precision.floats import Additions

Array = NDArray[np.generic]
Rows = NDArray[np.float32]  # each is what a product sums over for one column of its result

LARGEST_INT4, LARGEST_FP4, LARGEST_FP8 = 7, 6, 448
LARGEST_NVFP4 = LARGEST_FP4 * LARGEST_FP8  # in units of the scale of all blocks
E8M0_OF_ONE = 127  # the byte that stands for a scale of 2 to the power of 0
SHARES = np.linspace(1.0, 0.6, 21)  # of the largest magnitude in a block, that its largest number may stand for
SMALLEST_FP8 = np.float32(2.0**-9)
TINY = 1e-12


class Blocks(NamedTuple):
    numbers: Array  # as many as there are weights
    scales: Array  # one for each block
    of_scales: Array = np.ones((), np.float32)  # what the scales are multiplied by


def in_int4(rows: Rows, size: int, dtype: np.dtype[np.generic]) -> Blocks:
    """Round to integers from -8 to 7. Of several scales, each block takes the one with the least squared error."""
    blocks = _split(rows, size)
    amax, least = np.maximum(_amax(blocks), TINY), np.full(blocks.shape[:-1], np.inf, np.float32)
    numbers, scales = np.zeros(blocks.shape, np.int8), np.zeros(amax.shape, dtype)
    for share in SHARES:
        tried = (amax * np.float32(share / LARGEST_INT4)).astype(dtype)
        exact = np.maximum(tried.astype(np.float32), TINY)[..., None]
        rounded = np.clip(np.rint(blocks / exact), -LARGEST_INT4 - 1, LARGEST_INT4)
        error = np.square(rounded * exact - blocks).sum(-1)
        better = error < least
        least[better], numbers[better], scales[better] = error[better], rounded[better], tried[better]
    return Blocks(numbers.reshape(rows.shape).astype(ml_dtypes.int4), scales)


def in_nvfp4(rows: Rows, size: int) -> Blocks:
    """Round to float4 (E2M1), with a scale for each block in float8 (E4M3), and one for all blocks in float32."""
    blocks = _split(rows, size)
    whole = np.maximum(np.abs(rows).max() / np.float32(LARGEST_NVFP4), TINY)
    scales = np.maximum(_amax(blocks) / LARGEST_FP4 / whole, SMALLEST_FP8).astype(ml_dtypes.float8_e4m3fn)
    exact = (scales.astype(np.float32) * whole)[..., None]
    numbers = np.clip(blocks / exact, -LARGEST_FP4, LARGEST_FP4).astype(ml_dtypes.float4_e2m1fn)
    return Blocks(numbers.reshape(rows.shape), scales, np.asarray(whole, np.float32))


def in_mxfp8(rows: Rows, size: int) -> Blocks:
    """Round to float8 (E4M3), with a power of two as the scale of each block, as a byte (E8M0)."""
    blocks = _split(rows, size)
    powers = np.ceil(np.log2(np.maximum(_amax(blocks), TINY) / LARGEST_FP8))
    numbers = (blocks / np.exp2(powers)[..., None]).astype(ml_dtypes.float8_e4m3fn)
    return Blocks(numbers.reshape(rows.shape), (powers + E8M0_OF_ONE).astype(np.uint8))


def _split(rows: Rows, size: int) -> Rows:
    return rows.reshape(len(rows), -1, size)


def _amax(blocks: Rows) -> Rows:
    return np.asarray(np.abs(blocks).max(axis=-1), np.float32)


# Write int4, nvfp4 and mxfp8: products of matrices with weights in blocks, and for the latter two what these
# multiply, too. The nodes are those that ModelOpt exports, and that NVIDIA's parser reads.

OPSETS = {"int4": 21, "nvfp4": 23, "mxfp8": 19}  # the first that have these types; of int4, in blocks
IR_VERSIONS = {"int4": 10, "nvfp4": 11, "mxfp8": 9}
FEWEST_COLUMNS = 16
MOST_AXES = 3  # of what NVIDIA's operators round
FP8 = int(ir.DataType.FLOAT8E4M3FN)


class Written(NamedTuple):
    model: onnx.ModelProto
    in_blocks: list[str]  # the names of the products
    stay: dict[str, str]  # those of the others, each with the reason


def write_blocks(
    model: onnx.ModelProto, precision: str, ranges: Mapping[str, float], kept: Collection[str] = ()
) -> Written:
    """Return a copy in blocks, but for the nodes of the names in `kept`.

    `ranges` are the largest magnitudes of what products read, by the names of the products. Only nvfp4 needs them.
    """
    writer = Writer(model, precision, ranges)
    in_blocks, stay = [], {}
    for node in [node for node in writer.model.graph if _multiplies_weights(node) and node.name not in kept]:
        if why := writer.hindrance(node):
            stay[node.name or ""] = why
        else:
            writer.round_operands(node)
            in_blocks.append(node.name or "")
    return Written(ir.to_proto(writer.model), in_blocks, stay)


class Writer:
    """A copy of a graph, into which blocks are written."""

    def __init__(self, model: onnx.ModelProto, precision: str, ranges: Mapping[str, float]) -> None:
        self.model = as_ir(at_opset(model, OPSETS[precision]))
        self.model.ir_version = max(self.model.ir_version, IR_VERSIONS[precision])
        self._precision, self._ranges, self._size = precision, ranges, PRECISIONS[precision].block
        self._add = Additions(self.model)
        self._rounded: dict[tuple[ir.Value, bool], ir.Value] = {}
        if not self._weights_alone:
            self.model.opset_imports[DOMAIN] = 1

    @property
    def _weights_alone(self) -> bool:
        return self._precision == "int4"

    def hindrance(self, node: ir.Node) -> str:
        """Return why a product cannot be in blocks, or nothing if it can."""
        columns, summed = _rows_of(node).shape
        if summed % self._size:
            return f"it sums {summed} numbers, which is no multiple of {self._size}"
        if columns < FEWEST_COLUMNS:
            return f"it makes fewer than {FEWEST_COLUMNS} columns"
        if not self._weights_alone and _operand(node, 0).shape is None:
            return "it is not known how many axes it reads"
        return ""

    def round_operands(self, node: ir.Node) -> None:
        """Let a product read rounded weights, and if these are not rounded alone, a rounded activation."""
        if not self._weights_alone:
            self._replace(node, 0, self._activation)
        weights = {"int4": self._int4_weights, "nvfp4": self._nvfp4_weights, "mxfp8": self._mxfp8_weights}
        self._replace(node, 1, weights[self._precision])

    def _replace(self, node: ir.Node, index: int, write: Callable[[ir.Node], list[ir.Node]]) -> None:
        """Write the nodes that round an operand in front of its first reader. Others with it read the same."""
        exact = _operand(node, index)
        key = exact, index == 1 and _has_rows(node)
        if key not in self._rounded:
            nodes = write(node)
            node.prepend(nodes)
            (self._rounded[key],) = nodes[-1].outputs
            self._rounded[key].type, self._rounded[key].shape = exact.type, exact.shape  # which no tool infers
        node.replace_input_with(index, self._rounded[key])
        if exact.const_value is not None and not exact.uses() and not exact.is_graph_output():
            self.model.graph.initializers.pop(exact.name or "")

    def _int4_weights(self, node: ir.Node) -> list[ir.Node]:
        weights = _operand(node, 1)
        numbers, scales, _ = in_int4(_rows_of(node), self._size, _dtype(weights))
        if not _has_rows(node):
            numbers, scales = numbers.T, scales.T
        int4 = self._add.constant(f"{weights.name}.int4", numbers)
        scale = self._add.constant(f"{weights.name}.scale", scales)
        how: dict[str, Any] = {"axis": int(_has_rows(node)), "block_size": self._size}
        return [self._add.node("DequantizeLinear", [int4, scale], f"{weights.name}.rounded", **how)]

    def _nvfp4_weights(self, node: ir.Node) -> list[ir.Node]:
        weights = _operand(node, 1)
        numbers, scales, whole = in_nvfp4(_rows_of(node), self._size)
        fp4 = self._add.constant(f"{weights.name}.fp4", numbers)
        scale = self._add.constant(f"{weights.name}.scale", scales)
        of_scales = self._add.constant(f"{weights.name}.scale_of_scales", whole)
        return self._turned(node, self._from_nvfp4(weights, fp4, scale, of_scales))

    def _mxfp8_weights(self, node: ir.Node) -> list[ir.Node]:
        weights = _operand(node, 1)
        numbers, scales, _ = in_mxfp8(_rows_of(node), self._size)
        fp8 = self._add.constant(f"{weights.name}.fp8", numbers)
        scale = self._add.constant(f"{weights.name}.scale", scales)
        return self._turned(node, [self._from_mxfp8(weights, fp8, scale)])

    def _activation(self, node: ir.Node) -> list[ir.Node]:
        """Return the nodes that round what a product reads: as a stack of matrices, if it has more axes."""
        read, write = _operand(node, 0), self._nvfp4 if self._precision == "nvfp4" else self._mxfp8
        assert read.shape is not None
        if len(read.shape) <= MOST_AXES:
            return write(node, read)
        stacked = self._add.constant(f"{read.name}.stacked", np.array([0, -1, _rows_of(node).shape[1]]))
        stack = self._add.node("Reshape", [read, stacked], f"{read.name}.stack")
        stack.outputs[0].type = read.type
        nodes = write(node, stack.outputs[0])
        shape = self._add.node("Shape", [read], f"{read.name}.shape")
        back = self._add.node("Reshape", [nodes[-1].outputs[0], shape.outputs[0]], f"{read.name}.back")
        return [stack, *nodes, shape, back]

    def _nvfp4(self, node: ir.Node, read: ir.Value) -> list[ir.Node]:
        if (amax := self._ranges.get(node.name or "")) is None:
            raise EnginewrightError(
                f"the calibration has no range for {read.name}, which {node.name} reads: set calibration.file: null "
                "to measure"
            )
        scale = np.asarray(max(amax, TINY) / LARGEST_NVFP4, np.float32)
        of_scales = self._add.constant(f"{read.name}.scale_of_scales", scale)
        names, how = (f"{read.name}.fp4", f"{read.name}.scale"), self._along_rows(scale_type=FP8)
        quantize = self._add.node(FP4_QUANTIZE, [read, of_scales], *names, domain=DOMAIN, **how)
        numbers, scales = quantize.outputs
        return [quantize, *self._from_nvfp4(read, numbers, scales, of_scales)]

    def _mxfp8(self, node: ir.Node, read: ir.Value) -> list[ir.Node]:
        names, how = (f"{read.name}.fp8", f"{read.name}.scale"), self._along_rows(output_dtype=FP8)
        quantize = self._add.node(MXFP8_QUANTIZE, [read], *names, domain=DOMAIN, **how)
        numbers, scales = quantize.outputs
        return [quantize, self._from_mxfp8(read, numbers, scales)]

    def _along_rows(self, **more: int) -> dict[str, Any]:
        return {"axis": -1, "block_size": self._size, **more}

    def _from_nvfp4(self, exact: ir.Value, numbers: ir.Value, scales: ir.Value, of_scales: ir.Value) -> list[ir.Node]:
        """Return the nodes that make floats of it, which are float32 as their scale is."""
        scale = self._add.node("DequantizeLinear", [scales, of_scales], f"{exact.name}.exact_scale")
        given, name = [numbers, scale.outputs[0]], f"{exact.name}.floats"
        floats = self._add.node("DequantizeLinear", given, name, **self._along_rows())
        if exact.dtype == ir.DataType.FLOAT:
            return [scale, floats]
        cast = self._add.node("Cast", [floats.outputs[0]], f"{exact.name}.rounded", to=_element(exact))
        return [scale, floats, cast]

    def _from_mxfp8(self, exact: ir.Value, numbers: ir.Value, scales: ir.Value) -> ir.Node:
        name, how = f"{exact.name}.rounded", self._along_rows(output_dtype=_element(exact))
        return self._add.node(MXFP8_DEQUANTIZE, [numbers, scales], name, domain=DOMAIN, **how)

    def _turned(self, node: ir.Node, nodes: list[ir.Node]) -> list[ir.Node]:
        """Return the nodes that make rows, and one that makes columns of these if the product reads columns."""
        if _has_rows(node):
            return nodes
        rows = nodes[-1].outputs[0]
        return [*nodes, self._add.node("Transpose", [rows], f"{_operand(node, 1).name}.turned", perm=[1, 0])]


def _multiplies_weights(node: ir.Node) -> bool:
    """Tell whether it multiplies an activation by a constant matrix."""
    if node.op_type not in ("MatMul", "Gemm") or node.domain or _is_set(node, "transA"):
        return False
    read, weights = node.inputs[:2]
    if read is None or read.const_value is not None or weights is None or weights.const_value is None:
        return False
    return len(weights.const_value.shape) == 2 and weights.dtype in (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def _operand(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _element(value: ir.Value) -> int:
    assert value.dtype is not None
    return int(value.dtype)


def _dtype(value: ir.Value) -> np.dtype[np.generic]:
    assert value.dtype is not None
    return np.dtype(value.dtype.numpy())


def _has_rows(node: ir.Node) -> bool:
    """Tell whether the weights lie as rows that are summed over, as PyTorch has them."""
    return node.op_type == "Gemm" and _is_set(node, "transB")


def _is_set(node: ir.Node, name: str) -> bool:
    """Tell whether a switch is on: PyTorch writes those that are off, too."""
    return name in node.attributes and bool(node.attributes[name].as_int())


def _rows_of(node: ir.Node) -> Rows:
    weights = _operand(node, 1).const_value
    assert weights is not None
    array = weights.numpy().astype(np.float32)
    return array if _has_rows(node) else np.ascontiguousarray(array.T)
