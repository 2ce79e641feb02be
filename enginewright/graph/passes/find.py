"""Find, add and remove nodes and values: in the main graph, in bodies such as a Loop's, and in functions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

Pass = Callable[[ir.Model], bool]  # changes a graph in place, and tells whether it has found something to change
Values = Sequence[ir.Value | None]


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


def settings_of(node: ir.Node) -> dict[str, Any] | None:
    """Return the attributes of a node, or None if one of them is known only where the function around it is called."""
    known = {name: attribute.value for name, attribute in node.attributes.items()}
    return None if any(attribute.is_ref() for attribute in node.attributes.values()) else known


def sizes_of(value: ir.Value | None) -> list[int | ir.SymbolicDim]:
    return list(value.shape) if value is not None and value.shape is not None else []


def constant_of(value: ir.Value | None) -> list[Any] | None:
    """Return the numbers of a constant in one list, whatever its shape."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else list(tensor.numpy().ravel().tolist())


def names_in_use(model: ir.Model) -> set[str]:
    """Return the names of all graphs, so that a new name differs from every one that its readers may see."""
    return {value.name for value in all_values(model) if value.name}


def unused_name(name: str, taken: set[str]) -> str:
    """Return the name, with dots behind it until no other value has it, and count it as taken."""
    while name in taken:
        name += "."
    taken.add(name)
    return name


class Inserter:
    """Adds constants and nodes under names that the model does not have yet."""

    def __init__(self, model: ir.Model) -> None:
        self._model, self._taken = model, names_in_use(model)

    def constant(self, reader: ir.Node, name: str, array: ArrayLike) -> ir.Value:
        return add_constant(self._model, reader, unused_name(name, self._taken), array)

    def node(
        self, reader: ir.Node, op_type: str, inputs: Values, result: str, name: str = "", **attributes: Any
    ) -> ir.Value:
        """Add a node before the one that is to read its result, whose name it has if it has none. Return the result."""
        made = self._value(result)
        reader.prepend(ir.node(op_type, inputs, attributes, outputs=[made], name=name or made.name))
        return made

    def nodes(
        self, reader: ir.Node, op_type: str, inputs: Values, results: Sequence[str], domain: str = "", **attributes: Any
    ) -> list[ir.Value]:
        """Add a node with several results, called as the first of them."""
        made = [self._value(each) for each in results]
        reader.prepend(ir.node(op_type, inputs, attributes, domain=domain, outputs=made, name=made[0].name))
        return made

    def behind(self, value: ir.Value, op_type: str, inputs: Values, result: str) -> ir.Value:
        """Add a node where a value is made, and return its result."""
        made = self._value(result)
        node = ir.node(op_type, inputs, outputs=[made], name=made.name)
        if maker := value.producer():
            maker.append(node)
        else:
            self._model.graph[0].prepend(node)
        return made

    def _value(self, name: str) -> ir.Value:
        return ir.val(unused_name(name, self._taken))


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


def turn_into(node: ir.Node, op_type: str, inputs: Values, **attributes: Any) -> None:
    """Make a node one of another operator, under the same name and with the same result."""
    node.op_type = op_type
    node.attributes.clear()
    for attribute in ir.convenience.convert_attributes(attributes):
        node.attributes.add(attribute)
    replace_inputs(node, inputs)


def replace_inputs(node: ir.Node, inputs: Values) -> None:
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def remove_unused(model: ir.Model) -> bool:
    """Remove nodes and constants whose results nobody reads, such as those that other passes leave behind.

    The pass for this in onnx_ir leaves unread constants in bodies, and nodes that only a removed body read. It also
    removes unread outputs from nodes that stay.
    """
    return sum(map(_remove_from, (model.graph, *(function.graph for function in model.functions.values())))) > 0


def _remove_from(graph: ir.Graph) -> bool:
    """Remove nodes from the last to the first, then constants, and tell whether there were any."""
    removed = False
    for node in reversed(graph):
        if any(map(_is_used, node.outputs)):
            removed |= sum(map(_remove_from, _bodies(node))) > 0
        else:
            for reader in (node, *(inner for body in _bodies(node) for inner in body.all_nodes())):
                reader.resize_inputs(0)
            graph.remove(node)
            removed = True
    for name, constant in list(graph.initializers.items()):
        if not (_is_used(constant) or constant.is_graph_input()):
            del graph.initializers[name]
            removed = True
    return removed


def _is_used(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _bodies(node: ir.Node) -> list[ir.Graph]:
    bodies: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.as_graph())
        elif not attribute.is_ref() and attribute.type == ir.AttributeType.GRAPHS:
            bodies.extend(attribute.as_graphs())
    return bodies
