"""Rewrite a graph so that compilers and quantizers get it right.

Each pass keeps what the graph computes, and its docstring names the tool whose fault it avoids. No pass knows a
particular model: each looks for a pattern in the main graph, in the bodies of If, Loop and Scan, and in functions.
A pass that helps one compiler and slows others is not made here, but by the stage convert.
"""

import onnx
import onnx_ir as ir

from enginewright.graph.passes.find import RemoveUnused
from enginewright.graph.passes.names import GivePlainNames, LowerCaseEquations, NameNodes, NameSqueezedAxes
from enginewright.graph.passes.pooling import PoolWholeImages, ReshapeStridedCopies
from enginewright.graph.shapes import as_ir


def rewrite_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph after the passes that are good for every compiler; leave `model` as it is."""
    return apply_passes(
        model,
        ReshapeStridedCopies(),
        LowerCaseEquations(),
        NameSqueezedAxes(),
        PoolWholeImages(),
        GivePlainNames(),  # after the passes that add tensors
        NameNodes(),
        RemoveUnused(),
    )


def apply_passes(model: onnx.ModelProto, *passes: ir.passes.PassBase) -> onnx.ModelProto:
    """Return the graph after the passes, with the inferred type and shape of each tensor; leave `model` as it is."""
    return _after(model, passes, where_needed=False) or model


def changed_by(model: onnx.ModelProto, *passes: ir.passes.PassBase) -> onnx.ModelProto | None:
    """Return the same if a pass finds something to change, else None."""
    return _after(model, passes, where_needed=True) if passes else None


def _after(
    model: onnx.ModelProto, passes: tuple[ir.passes.PassBase, ...], where_needed: bool
) -> onnx.ModelProto | None:
    if _holds_sparse_tensors(model.graph):  # onnx_ir does not read them, and would leave them out
        return None
    # ONNX's own inference is used, since onnx_ir's takes a sequence of tensors for a tensor.
    rewritten = as_ir(model)
    found = [each(rewritten).modified for each in passes]
    if where_needed and not any(found):
        return None
    _forget_shapes_of_constants(rewritten)
    return ir.to_proto(rewritten)


def _holds_sparse_tensors(graph: onnx.GraphProto) -> bool:
    attributes = [attribute for node in graph.node for attribute in node.attribute]
    bodies = [body for attribute in attributes for body in (attribute.g, *attribute.graphs)]
    return (
        len(graph.sparse_initializer) > 0
        or any(attribute.HasField("sparse_tensor") or attribute.sparse_tensors for attribute in attributes)
        or any(_holds_sparse_tensors(body) for body in bodies)
    )


def _forget_shapes_of_constants(model: ir.Model) -> None:
    """Keep constants out of the list of activations, where onnx_ir writes each value whose type or shape it knows."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if not (value.is_graph_input() or value.is_graph_output() or value.metadata_props or value.doc_string):
                value.type = value.shape = None
