import onnx_ir as ir


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
