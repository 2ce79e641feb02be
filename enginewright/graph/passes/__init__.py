"""Rewrite a graph so that compilers and quantizers get it right.

Each pass keeps what the graph computes, and its docstring names the tool whose fault it avoids. No pass knows a
particular model: each looks for a pattern in the main graph, in the bodies of If, Loop and Scan, and in functions.
A pass that helps one compiler and slows others is not made here, but by the stage convert.
"""

import onnx
import onnx_ir as ir

from enginewright.graph.data_apart import with_bodies
from enginewright.graph.passes.find import Pass, remove_unused
from enginewright.graph.passes.for_every_compiler import (
    give_plain_names,
    lower_case_equations,
    name_nodes,
    name_squeezed_axes,
    pool_whole_images,
)
from enginewright.graph.shapes import as_ir


def rewrite_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph after the passes that are good for every compiler; leave `model` as it is."""
    return apply_passes(
        model,
        lower_case_equations,
        name_squeezed_axes,
        pool_whole_images,
        give_plain_names,  # after the passes that add tensors
        name_nodes,
        remove_unused,
    )


def apply_passes(model: onnx.ModelProto, *passes: Pass) -> onnx.ModelProto:
    """Return the graph after the passes, with the inferred type and shape of each tensor; leave `model` as it is."""
    return _after(model, passes, where_needed=False) or model


def changed_by(model: onnx.ModelProto, *passes: Pass) -> onnx.ModelProto | None:
    """Return the same if a pass finds something to change, else None."""
    return _after(model, passes, where_needed=True) if passes else None


def _after(model: onnx.ModelProto, passes: tuple[Pass, ...], where_needed: bool) -> onnx.ModelProto | None:
    if any(map(_holds_sparse_tensors, with_bodies(model.graph))):  # onnx_ir would leave them out
        return None
    # ONNX's own inference is used, since onnx_ir's takes a sequence of tensors for a tensor.
    rewritten = as_ir(model)
    found = [change(rewritten) for change in passes]
    if where_needed and not any(found):
        return None
    _forget_shapes_of_constants(rewritten)
    return ir.to_proto(rewritten)


def _holds_sparse_tensors(graph: onnx.GraphProto) -> bool:
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    return bool(graph.sparse_initializer) or any(
        attribute.HasField("sparse_tensor") or attribute.sparse_tensors for attribute in attributes
    )


def _forget_shapes_of_constants(model: ir.Model) -> None:
    """Keep constants out of the list of activations, where onnx_ir writes each value whose type or shape it knows."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if not (value.is_graph_input() or value.is_graph_output() or value.metadata_props or value.doc_string):
                value.type = value.shape = None
