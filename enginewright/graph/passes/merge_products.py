"""Make one product of those that read the same tensor."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir

from enginewright.graph.passes.find import Inserter, all_graphs, remove_unused

FIRST_OPSET = 13  # whose Split takes the sizes as an input


class Linear(NamedTuple):
    """A product with weights, and the bias that is added to it."""

    product: ir.Node
    weights: ir.TensorProtocol  # read only if they are merged, as there may be gigabytes of them
    add: ir.Node | None
    bias: ir.TensorProtocol | None

    @property
    def output(self) -> ir.Value:
        return (self.add or self.product).outputs[0]


def merge_products(model: ir.Model) -> bool:
    """Make one product of those that read the same tensor, such as queries, keys and values, and split the result.

    ONNX Runtime starts a kernel for each of them on a GPU, and one for each bias.
    """
    if (model.opset_imports.get("") or 0) < FIRST_OPSET:
        return False
    insert, found = Inserter(model), [group for graph in all_graphs(model) for group in _groups(graph)]
    for group in found:
        _merge(group, insert)
    if found:
        remove_unused(model)
    return bool(found)


def _groups(graph: ir.Graph) -> list[list[Linear]]:
    """Return the products that can be one: of the same tensor and type, and all with a bias or all without."""
    alike: dict[tuple[Any, ...], list[Linear]] = defaultdict(list)
    for node in graph:
        if (linear := _linear(node)) and not linear.output.is_graph_output():
            key = node.inputs[0], linear.add is None, linear.weights.dtype, linear.weights.shape[0]
            alike[key].append(linear)
    return [group for group in alike.values() if len(group) > 1]


def _linear(node: ir.Node) -> Linear | None:
    weights = _constant(node.inputs[1], axes=2) if node.op_type == "MatMul" and not node.domain else None
    if weights is None:
        return None
    product = node.outputs[0]
    readers = [] if product.is_graph_output() else [reader for reader, _ in product.uses()]
    if len(readers) == 1 and readers[0].op_type == "Add" and readers[0].graph is node.graph:
        others = [value for value in readers[0].inputs if value is not product]
        bias = _constant(others[0], axes=1) if others else None
        if bias is not None and bias.shape[0] == weights.shape[1]:
            return Linear(node, weights, readers[0], bias)
    return Linear(node, weights, None, None)


def _constant(value: ir.Value | None, axes: int) -> ir.TensorProtocol | None:
    if value is None or value.const_value is None or value.is_graph_input() or len(value.const_value.shape) != axes:
        return None
    return value.const_value


def _merge(group: Sequence[Linear], insert: Inserter) -> None:
    first = group[0].product
    own = first.name

    def joined(nodes: Iterator[ir.Node]) -> str | None:
        return ", ".join(node.name for node in nodes if node.name) or None  # as compilers name what they fuse

    weights = insert.constant(first, f"{own}_weights", np.concatenate([each.weights.numpy() for each in group], axis=1))
    name = joined(each.product for each in group)
    whole = insert.node(first, "MatMul", [first.inputs[0], weights], f"{own}_product", name)
    if biases := [each.bias.numpy() for each in group if each.bias is not None]:
        constant = insert.constant(first, f"{own}_biases", np.concatenate(biases))
        name = joined(each.add for each in group if each.add)
        whole = insert.node(first, "Add", [whole, constant], f"{own}_sum", name)
    sizes = insert.constant(first, f"{own}_sizes", [each.weights.shape.numpy()[1] for each in group])
    parts = [insert.value(f"{own}_part") for _ in group]
    first.prepend(ir.node("Split", [whole, sizes], {"axis": -1}, outputs=parts))
    for linear, part in zip(group, parts, strict=True):
        part.type, part.shape = linear.output.type, linear.output.shape
        linear.output.replace_all_uses_with(part)
