"""Write w8, int4, nvfp4 and mxfp8: products of matrices with weights in blocks, which are numbers of a row, one after
the other, that share a scale. In nvfp4 and mxfp8, what the weights multiply is in blocks, too. In w8, a row of a table
that is looked up is a block, too.

ModelOpt's int4 knows no weights in rows, and its search takes minutes where this takes a second, and loses as much.
Its nvfp4 and mxfp8 are for graphs that its PyTorch half wrote. The nodes are those that it exports, and that NVIDIA's
parser reads. test_write_blocks.py holds the numbers against its own.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import DTypeLike, NDArray
from onnx import ModelProto

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.data.feeds import TINY
from enginewright.data.run_all import Array
from enginewright.graph.as_written import DOMAIN, E8M0_OF_ONE, FP4_QUANTIZE, FP8, MXFP8_DEQUANTIZE, MXFP8_QUANTIZE
from enginewright.graph.onnx_file import at_opset
from enginewright.graph.passes.find import Inserter, remove_unused, turn_into
from enginewright.graph.shapes import as_ir
from enginewright.precision.placement import FLOATS, has_rows
from enginewright.precision.write_int8 import dtype_of

Rows = NDArray[np.float32]  # each is what a product sums over for one column of its result

LARGEST_FP4, LARGEST_FP8 = 6, 448
# the largest, and the type
INTEGERS: dict[str, tuple[int, DTypeLike]] = {"w8": (127, np.int8), "int4": (7, ml_dtypes.int4)}
LARGEST_NVFP4 = LARGEST_FP4 * LARGEST_FP8  # in units of the scale of all blocks
SHARES = np.linspace(1.0, 0.6, 21)  # of the largest magnitude in a block, that its largest number may stand for
SMALLEST_FP8 = np.float32(2.0**-9)

OPSETS = {"w8": 21, "int4": 21, "nvfp4": 23, "mxfp8": 19}  # the first that have these types; of integers, in blocks
IR_VERSIONS = {"w8": 10, "int4": 10, "nvfp4": 11, "mxfp8": 9}
FEWEST_COLUMNS = 16
MOST_AXES = 3  # of what NVIDIA's operators round
FP32 = ir.DataType.FLOAT


class Blocks(NamedTuple):
    numbers: Array  # as many as there are weights
    scales: Array  # one for each block
    of_scales: Array = np.ones((), np.float32)  # what the scales are multiplied by


def in_integers(rows: Rows, size: int, dtype: np.dtype[np.generic], precision: str) -> Blocks:
    """Round to integers, as from -8 to 7. Of several scales, each block takes the one with the least squared error."""
    blocks, amax = _in_blocks(rows, size)
    largest, kind = INTEGERS[precision]
    least = np.full(amax.shape, np.inf, np.float32)
    numbers, scales = np.zeros(blocks.shape, np.int8), np.zeros(amax.shape, dtype)
    for share in SHARES:
        tried = (amax * np.float32(share / largest)).astype(dtype)
        exact = np.maximum(tried.astype(np.float32), TINY)[..., None]
        rounded = np.clip(np.rint(blocks / exact), -largest - 1, largest)
        error = np.square(rounded * exact - blocks).sum(-1)
        better = error < least
        least[better], numbers[better], scales[better] = error[better], rounded[better], tried[better]
    return Blocks(numbers.reshape(rows.shape).astype(kind), scales)


def in_nvfp4(rows: Rows, size: int) -> Blocks:
    """Round to float4 (E2M1), with a scale for each block in float8 (E4M3), and one for all blocks in float32."""
    blocks, amax = _in_blocks(rows, size)
    whole = np.maximum(amax.max() / np.float32(LARGEST_NVFP4), TINY)
    scales = np.maximum(amax / LARGEST_FP4 / whole, SMALLEST_FP8).astype(ml_dtypes.float8_e4m3fn)
    exact = (scales.astype(np.float32) * whole)[..., None]
    numbers = np.clip(blocks / exact, -LARGEST_FP4, LARGEST_FP4).astype(ml_dtypes.float4_e2m1fn)
    return Blocks(numbers.reshape(rows.shape), scales, np.asarray(whole, np.float32))


def in_mxfp8(rows: Rows, size: int) -> Blocks:
    """Round to float8 (E4M3), with a power of two as the scale of each block, as a byte (E8M0)."""
    blocks, amax = _in_blocks(rows, size)
    powers = np.ceil(np.log2(amax / LARGEST_FP8))
    numbers = (blocks / np.exp2(powers)[..., None]).astype(ml_dtypes.float8_e4m3fn)
    return Blocks(numbers.reshape(rows.shape), (powers + E8M0_OF_ONE).astype(np.uint8))


def _in_blocks(rows: Rows, size: int) -> tuple[Rows, Rows]:
    """Return the blocks of each row, and the largest magnitude in each."""
    blocks = rows.reshape(len(rows), -1, size)
    return blocks, np.maximum(np.abs(blocks).max(axis=-1), np.float32(TINY))


class Written(NamedTuple):
    model: ModelProto
    in_blocks: list[str]  # the names of the products, and of what else has its weights in bytes
    stay: dict[str, str]  # those of the others, each with the reason


def write_blocks(model: ModelProto, precision: str, ranges: Mapping[str, float], kept: Collection[str] = ()) -> Written:
    """Return a copy in blocks, but for the nodes of the names in `kept`.

    `ranges` are the largest magnitudes of what products read, by the names of the products. Only nvfp4 needs them.
    """
    writer = BlockWriter(model, precision, ranges)
    in_blocks, stay = [], {}
    for node in list(writer.model.graph):
        if node.name in kept:
            continue
        product = _product_of(node)
        if product is None:
            if precision == "w8" and writer.round_table(node):
                in_blocks.append(node.name or "")
        elif why := writer.hindrance(product):
            stay[node.name or ""] = why
        else:
            writer.round_operands(product)
            in_blocks.append(node.name or "")
    remove_unused(writer.model)  # weights that are in blocks now
    return Written(ir.to_proto(writer.model), in_blocks, stay)


class Product(NamedTuple):
    """A product of an activation and constant weights."""

    node: ir.Node
    read: ir.Value
    weights: ir.Value
    rows: Rows  # of the weights


def _product_of(node: ir.Node) -> Product | None:
    is_turned = node.attributes.get_int("transA", 0) == 1
    if node.op_type not in ("MatMul", "Gemm") or node.domain or is_turned:
        return None
    read, weights = node.inputs[:2]
    if read is None or read.const_value is not None or weights is None or weights.const_value is None:
        return None
    if len(weights.const_value.shape) != 2 or weights.dtype not in FLOATS:
        return None
    array = weights.const_value.numpy().astype(np.float32)
    return Product(node, read, weights, array if has_rows(node) else np.ascontiguousarray(array.T))


class BlockWriter:
    """A copy of a graph, into which blocks are written."""

    def __init__(self, model: ModelProto, precision: str, ranges: Mapping[str, float]) -> None:
        self.model = as_ir(at_opset(model, OPSETS[precision]))
        self.model.ir_version = max(self.model.ir_version, IR_VERSIONS[precision])
        self._precision, self._ranges, self._size = precision, ranges, PRECISIONS[precision].block
        self._add = Inserter(self.model)
        self._rounded: dict[tuple[ir.Value, bool], ir.Value] = {}
        if precision not in INTEGERS:
            self.model.opset_imports[DOMAIN] = 1

    def hindrance(self, product: Product) -> str:
        """Return why a product cannot be in blocks, or nothing if it can."""
        columns, summed = product.rows.shape
        if summed % self._size:
            return f"it sums {summed} numbers, which is no multiple of {self._size}"
        if columns < FEWEST_COLUMNS:
            return f"it makes fewer than {FEWEST_COLUMNS} columns"
        if self._precision not in INTEGERS and product.read.shape is None:
            return "it is not known how many axes it reads"
        return ""

    def round_operands(self, product: Product) -> None:
        """Let a product read rounded weights, and if these are not rounded alone, a rounded activation."""
        if self._precision not in INTEGERS:
            self._round(product, 0, product.read)
        self._round(product, 1, product.weights)

    def round_table(self, node: ir.Node) -> bool:
        """Let a node that looks up rows of a table look up bytes and their scales. Tell whether it is one.

        Were the whole table made floats, as other weights are, ONNX Runtime would do so in each call."""
        table, places = node.inputs[:2] if node.op_type == "Gather" and not node.domain else (None, None)
        if table is None or places is None or table.const_value is None or table.dtype not in FLOATS:
            return False
        if len(table.uses()) > 1 or len(table.const_value.shape) != 2 or node.attributes.get_int("axis", 0) != 0:
            return False
        rows = table.const_value.numpy().astype(np.float32)
        made = in_integers(rows, rows.shape[1], dtype_of(table), self._precision)
        read = self._integers(node, table, made.numbers, made.scales)
        numbers, scales = (self._add.node(node, "Gather", [each, places], f"{each.name}.rows") for each in read)
        floats = self._add.node(node, "Cast", [numbers], f"{table.name}.floats", to=int(table.dtype))
        turn_into(node, "Mul", [floats, scales])
        return True

    def _round(self, product: Product, index: int, exact: ir.Value) -> None:
        """Write the nodes that round an operand in front of its first reader. Others with it read the same."""
        key = exact, index == 1 and has_rows(product.node)
        if key not in self._rounded:
            rounded = self._weights(product) if index else self._activation(product)
            rounded.type, rounded.shape = exact.type, exact.shape  # which no tool infers
            self._rounded[key] = rounded
        product.node.replace_input_with(index, self._rounded[key])

    def _weights(self, product: Product) -> ir.Value:
        exact, name, rows, size = product.weights, product.weights.name, product.rows, self._size
        if self._precision in INTEGERS:
            made, axis = in_integers(rows, size, dtype_of(exact), self._precision), int(has_rows(product.node))
            read = self._integers(product.node, exact, *(each if axis else each.T for each in made[:2]))
            how = self._along_rows(axis=axis)
            return self._add.node(product.node, "DequantizeLinear", read, f"{name}.rounded", **how)
        kind, made = ("fp4", in_nvfp4(rows, size)) if self._precision == "nvfp4" else ("fp8", in_mxfp8(rows, size))
        numbers = self._add.constant(product.node, f"{name}.{kind}", made.numbers)
        scales = self._add.constant(product.node, f"{name}.scale", made.scales)
        if kind == "fp4":
            whole = self._add.constant(product.node, f"{name}.scale_of_scales", made.of_scales)
            floats = self._from_nvfp4(product.node, exact, numbers, scales, whole)
        else:
            floats = self._from_mxfp8(product.node, exact, numbers, scales)
        if has_rows(product.node):
            return floats
        return self._add.node(product.node, "Transpose", [floats], f"{name}.turned", perm=[1, 0])

    def _integers(self, reader: ir.Node, exact: ir.Value, numbers: Array, scales: Array) -> list[ir.Value]:
        held = {self._precision: numbers, "scale": scales}
        return [self._add.constant(reader, f"{exact.name}.{name}", array) for name, array in held.items()]

    def _activation(self, product: Product) -> ir.Value:
        """Round what a product reads: as a stack of matrices, if it has more axes."""
        read, write = product.read, self._nvfp4 if self._precision == "nvfp4" else self._mxfp8
        assert read.shape is not None
        if len(read.shape) <= MOST_AXES:
            return write(product, read)
        stacked = self._add.constant(product.node, f"{read.name}.stacked", np.array([0, -1, product.rows.shape[1]]))
        stack = self._add.node(product.node, "Reshape", [read, stacked], f"{read.name}.stack")
        stack.type = read.type
        rounded = write(product, stack)
        shape = self._add.node(product.node, "Shape", [read], f"{read.name}.shape")
        return self._add.node(product.node, "Reshape", [rounded, shape], f"{read.name}.back")

    def _nvfp4(self, product: Product, read: ir.Value) -> ir.Value:
        if (amax := self._ranges.get(product.node.name or "")) is None:
            raise EnginewrightError(
                f"the calibration has no range for {read.name}, which {product.node.name} reads: set calibration.file: "
                "null to measure"
            )
        scale = np.asarray(max(amax, TINY) / LARGEST_NVFP4, np.float32)
        whole = self._add.constant(product.node, f"{read.name}.scale_of_scales", scale)
        names, how = (f"{read.name}.fp4", f"{read.name}.scale"), self._along_rows(scale_type=FP8)
        numbers, scales = self._add.nodes(product.node, FP4_QUANTIZE, [read, whole], names, DOMAIN, **how)
        return self._from_nvfp4(product.node, read, numbers, scales, whole)

    def _mxfp8(self, product: Product, read: ir.Value) -> ir.Value:
        names, how = (f"{read.name}.fp8", f"{read.name}.scale"), self._along_rows(output_dtype=FP8)
        made = self._add.nodes(product.node, MXFP8_QUANTIZE, [read], names, DOMAIN, **how)
        return self._from_mxfp8(product.node, read, *made)

    def _from_nvfp4(
        self, reader: ir.Node, exact: ir.Value, numbers: ir.Value, scales: ir.Value, of_scales: ir.Value
    ) -> ir.Value:
        """Make floats of it, which are float32 as their scale is."""
        add, name = self._add.node, exact.name
        scale = add(reader, "DequantizeLinear", [scales, of_scales], f"{name}.exact_scale")
        floats = add(reader, "DequantizeLinear", [numbers, scale], f"{name}.floats", **self._along_rows())
        if exact.dtype == FP32:
            return floats
        return add(reader, "Cast", [floats], f"{name}.rounded", to=int(exact.dtype or FP32))

    def _from_mxfp8(self, reader: ir.Node, exact: ir.Value, numbers: ir.Value, scales: ir.Value) -> ir.Value:
        names, how = [f"{exact.name}.rounded"], self._along_rows(output_dtype=int(exact.dtype or FP32))
        return self._add.nodes(reader, MXFP8_DEQUANTIZE, [numbers, scales], names, DOMAIN, **how)[0]

    def _along_rows(self, **more: int) -> dict[str, Any]:
        return {"axis": -1, "block_size": self._size, **more}
