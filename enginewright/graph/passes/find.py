"""Find nodes and values in the main graph, in bodies such as a Loop's, and in functions."""

from collections.abc import Iterator

import onnx_ir as ir


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
