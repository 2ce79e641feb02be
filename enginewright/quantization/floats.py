"""Count what a quantized graph leaves in floats: its weights and its operations, by kind."""

from collections.abc import Iterable
from math import prod

import onnx
from onnx import TensorProto

from enginewright.core.record import Record
from enginewright.data.feeds import Feeds
from enginewright.graph.shapes import shapes_for
from enginewright.quantization.structure import PASSED_ON, PRODUCTS
from enginewright.quantization.work import RECURRENT, products_of

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
QUANTIZERS = ("QuantizeLinear", "DequantizeLinear")
EMBEDDING, ATTENTION, OTHER = "embedding", "product in attention", "other"  # beside operators
MATTERS = 0.05  # of all weights or operations: less is not worth a word
MUCH = 0.5  # of the operations
WITHOUT_KERNEL = "no compiler here runs a recurrent layer in bytes"


class Left(Record):
    """What nodes of one kind leave in floats."""

    kind: str
    weights: float  # their share of all weights
    operations: float  # their share of all products of two numbers
    count: int
    names: tuple[str, ...]  # of the nodes and of what they return: an engine's layers are called after either


def left_in_floats(model: onnx.ModelProto, sample: Feeds) -> tuple[Left, ...]:
    """Return what reads no rounded value, if it has weights or multiplies, the kind with most weights first."""
    graph, shapes = model.graph, shapes_for(model, sample)
    weights = {each.name: prod(each.dims) for each in graph.initializer if each.data_type in FLOATS}
    rounded, constants = set[str](), {each.name for each in graph.initializer}
    total_weights = total_products = 0
    found: dict[str, list[tuple[onnx.NodeProto, int, int]]] = {}
    for node in graph.node:  # which come in the order of execution
        if node.op_type in QUANTIZERS:
            if node.op_type == "DequantizeLinear":
                rounded.update(node.output)
            if node.input[0] in constants:
                constants.update(node.output)
                total_weights += prod(shapes.get(node.input[0], ()))
            continue
        reads_rounded = not rounded.isdisjoint(node.input)
        if reads_rounded and node.op_type in PASSED_ON:
            rounded.update(node.output)
        held = sum(weights.pop(name, 0) for name in dict.fromkeys(node.input))
        products = products_of(node, shapes, constants)
        total_weights, total_products = total_weights + held, total_products + products
        if not reads_rounded and (held or products):
            found.setdefault(_kind(node, constants), []).append((node, held, products))
    rows = (
        Left(
            kind=kind,
            weights=sum(held for _, held, _ in nodes) / max(total_weights, 1),
            operations=sum(products for *_, products in nodes) / max(total_products, 1),
            count=len(nodes),
            names=tuple(name for node, *_ in nodes for name in dict.fromkeys((node.name, *node.output)) if name),
        )
        for kind, nodes in found.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.weights, -row.operations, row.kind)))


def floats_in_words(left: Iterable[Left]) -> str | None:
    """Return what is in floats in one sentence without its stop, or None where that is little."""
    rows = list(left)
    weights, operations = sum(row.weights for row in rows), sum(row.operations for row in rows)
    if max(weights, operations) <= MATTERS:
        return None
    most = [row for row in rows if max(row.weights, row.operations) > MATTERS]
    kinds = ", ".join(f"{row.count} {row.kind} ({row.weights:.0%}, {row.operations:.0%})" for row in most)
    why = f"; {WITHOUT_KERNEL}" if any(row.kind in RECURRENT for row in most) else ""
    named = f": {kinds}" if kinds else ""
    return f"{weights:.0%} of the weights and {operations:.0%} of the operations stay in floats{named}{why}"


def doubt_in_words(precision: str, left: Iterable[Left]) -> str | None:
    """Return what to do where most operations are in floats, or None."""
    operations = sum(row.operations for row in left)
    if operations <= MUCH:
        return None
    return (
        f"{precision} keeps {operations:.0%} of the operations in floats, and may be no faster than fp32: "
        "the precision best mixes both and takes what is faster, see docs/precisions.md"
    )


def _kind(node: onnx.NodeProto, constants: set[str]) -> str:
    if node.op_type == "Gather" and node.input[0] in constants:
        return EMBEDDING
    if node.op_type == "MatMul" and constants.isdisjoint(node.input):
        return ATTENTION
    return node.op_type if node.op_type in (*PRODUCTS, *RECURRENT) else OTHER
