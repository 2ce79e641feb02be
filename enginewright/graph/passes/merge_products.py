from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from enginewright.graph.passes.find import RemoveUnused, add_constant, all_graphs, names_in_use, unused_name

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


class MergeProducts(ir.passes.InPlacePass):
    """Make one product of those that read the same tensor, such as queries, keys and values, and split the result.

    ONNX Runtime starts a kernel for each of them on a GPU, and one for each bias.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if (model.opset_imports.get("") or 0) < FIRST_OPSET:
            return ir.passes.PassResult(model, modified=False)
        taken, found = names_in_use(model), [group for graph in all_graphs(model) for group in _groups(graph)]
        for group in found:
            _merge(model, group, taken)
        if found:
            RemoveUnused()(model)
        return ir.passes.PassResult(model, modified=bool(found))


def _groups(graph: ir.Graph) -> list[list[Linear]]:
    """Return the products that can be one: of the same tensor and type, and all with a bias or all without."""
    alike: dict[tuple[Any, ...], list[Linear]] = defaultdict(list)
    for node in graph:
        if (linear := _linear(node)) and not linear.output.is_graph_output():
            key = node.inputs[0], linear.add is None, linear.weights.dtype, linear.weights.shape[0]
            alike[key].append(linear)
    return [group for group in alike.values() if len(group) > 1]


def _linear(node: ir.Node) -> Linear | None:
    if node.op_type != "MatMul" or node.domain:
        return None
    weights = _constant(node.inputs[1], axes=2)
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


def _merge(model: ir.Model, group: Sequence[Linear], taken: set[str]) -> None:
    first, tape = group[0].product, list[ir.Node]()

    def constant(what: str, array: ArrayLike) -> ir.Value:
        return add_constant(model, first, unused_name(f"{first.name}_{what}", taken), array)

    def compute(
        op_type: str, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value], of: Sequence[ir.Node | None]
    ) -> ir.Value:
        name = ", ".join(node.name for node in of if node is not None and node.name)  # as compilers name what they fuse
        attributes = {"axis": -1} if op_type == "Split" else {}
        tape.append(ir.node(op_type, inputs, attributes, outputs=outputs, name=name or None))
        return outputs[0]

    def value(what: str) -> ir.Value:
        return ir.val(unused_name(f"{first.name}_{what}", taken))

    weights = constant("weights", np.concatenate([linear.weights.numpy() for linear in group], axis=1))
    products, adds = [linear.product for linear in group], [linear.add for linear in group]
    whole = compute("MatMul", [first.inputs[0], weights], [value("product")], products)
    biases = [linear.bias.numpy() for linear in group if linear.bias is not None]
    if biases:
        whole = compute("Add", [whole, constant("biases", np.concatenate(biases))], [value("sum")], adds)
    sizes = constant("sizes", [linear.weights.shape.numpy()[1] for linear in group])
    parts = [value("part") for _ in group]
    compute("Split", [whole, sizes], parts, [])
    first.prepend(tape)
    for linear, part in zip(group, parts, strict=True):
        part.type, part.shape = linear.output.type, linear.output.shape
        linear.output.replace_all_uses_with(part)
