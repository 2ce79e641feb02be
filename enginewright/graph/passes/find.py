"""Find nodes and values in the main graph, in bodies such as a Loop's, and in functions."""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike


def all_graphs(model: ir.Model) -> Iterator[ir.Graph]:
    yield from model.graphs()
    for function in model.functions.values():
        yield function.graph
        yield from function.subgraphs()


def find_nodes(model: ir.Model, op_type: str) -> list[ir.Node]:
    """Return the nodes of one of ONNX's own operators, as a list, so that the caller may change or move them."""
    nodes = (node for graph in all_graphs(model) for node in graph)
    return [node for node in nodes if node.op_type == op_type and node.domain == ""]


def all_values(model: ir.Model) -> list[ir.Value]:
    """Return each value once: inputs, constants, and what nodes compute."""
    values: dict[ir.Value, None] = {}
    for graph in all_graphs(model):
        values.update(dict.fromkeys((*graph.inputs, *graph.initializers.values())))
        values.update(dict.fromkeys(output for node in graph for output in node.outputs if output.name))
    return list(values)


def names_in_use(model: ir.Model) -> set[str]:
    """Return the names of all graphs, so that a new name differs from every one that its readers may see."""
    return {value.name for value in all_values(model) if value.name}


def unused_name(wanted: str, taken: set[str]) -> str:
    """Return the wanted name, with dots behind it until no other value has it, and count it as taken."""
    while wanted in taken:
        wanted += "."
    taken.add(wanted)
    return wanted


# Add constants to a graph.


def add_constant(model: ir.Model, reader: ir.Node, name: str, array: ArrayLike) -> ir.Value:
    """Add a constant to the graph of the node that is to read it. Python's integers become int64."""
    graph = reader.graph
    assert graph is not None
    tensor = ir.tensor(np.asarray(array), name=name)
    if any(graph is function.graph for function in model.functions.values()):  # a function holds no initializers
        constant = ir.node("Constant", [], {"value": tensor}, outputs=[ir.val(name)], name=name)
        reader.prepend(constant)
        return constant.outputs[0]
    value = ir.val(name, const_value=tensor)
    graph.initializers.add(value)
    return value


class RemoveUnused(ir.passes.InPlacePass):
    """Remove nodes and constants whose results nobody reads, such as those that other passes leave behind.

    The pass for this in onnx_ir leaves unread constants in bodies, and nodes that only a removed body read. It also
    removes unread outputs from nodes that stay.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        removed = _remove_from(model.graph)
        for function in model.functions.values():
            removed += _remove_from(function.graph)
        return ir.passes.PassResult(model, modified=removed > 0)


def _remove_from(graph: ir.Graph) -> int:
    """Remove nodes from the last to the first, then constants, and return how many were removed."""
    removed = 0
    for node in reversed(graph):
        if any(_is_used(output) for output in node.outputs):
            removed += sum(_remove_from(body) for body in _bodies(node))
        else:
            _stop_reading(node)
            graph.remove(node)
            removed += 1
    for name, constant in list(graph.initializers.items()):
        if not (_is_used(constant) or constant.is_graph_input()):
            del graph.initializers[name]
            removed += 1
    return removed


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _stop_reading(node: ir.Node) -> None:
    for reader in (node, *(inner for body in _bodies(node) for inner in body.all_nodes())):
        reader.resize_inputs(0)


def _bodies(node: ir.Node) -> list[ir.Graph]:
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.as_graph())
        elif not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPHS:
            bodies.extend(attribute.as_graphs())
    return bodies
