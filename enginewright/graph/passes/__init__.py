"""Rewrite a graph so that compilers and quantizers get it right.

Each pass keeps what the graph computes, and its docstring names the tool whose fault it avoids. No pass knows a
particular model: each looks for a pattern in the main graph, in the bodies of If, Loop and Scan, and in functions.
A pass that helps one compiler and slows others is not made here, but by the stage convert.
"""

import string

import onnx
import onnx_ir as ir

from enginewright.graph.data_apart import with_bodies
from enginewright.graph.passes import find
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
        find.remove_unused,
    )


def apply_passes(model: onnx.ModelProto, *passes: find.Pass) -> onnx.ModelProto:
    """Return the graph after the passes, with the inferred type and shape of each tensor; leave `model` as it is."""
    return _after(model, passes, where_needed=False) or model


def changed_by(model: onnx.ModelProto, *passes: find.Pass) -> onnx.ModelProto | None:
    """Return the same if a pass finds something to change, else None."""
    return _after(model, passes, where_needed=True) if passes else None


def _after(model: onnx.ModelProto, passes: tuple[find.Pass, ...], where_needed: bool) -> onnx.ModelProto | None:
    if any(map(_holds_sparse_tensors, with_bodies(model.graph))):  # onnx_ir would leave them out
        return None
    # ONNX's own inference is used, since onnx_ir's takes a sequence of tensors for a tensor.
    rewritten = as_ir(model)
    found = [change(rewritten) for change in passes]
    if where_needed and not any(found):
        return None
    # onnx_ir lists each value whose type or shape it knows among the activations: constants are none.
    for graph in rewritten.graphs():
        for value in graph.initializers.values():
            if not (value.is_graph_input() or value.is_graph_output() or value.metadata_props or value.doc_string):
                value.type = value.shape = None
    return ir.to_proto(rewritten)


def _holds_sparse_tensors(graph: onnx.GraphProto) -> bool:
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    return bool(graph.sparse_initializer) or any(
        attribute.HasField("sparse_tensor") or attribute.sparse_tensors for attribute in attributes
    )


# The passes that are good for every compiler and quantizer: names, axes and poolings that some of them mistake.

AXES_ARE_AN_INPUT = 13  # from this opset on; before it, Squeeze takes its axes as an attribute
GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


def name_nodes(model: ir.Model) -> bool:
    """Name each node that has no name after its first output.

    `keep.nodes` and reports call nodes by name, and ModelOpt excludes all of them by an empty one.
    """
    nameless = [node for node in model.graph if not node.name]
    taken = {node.name for node in model.graph if node.name}
    for node in nameless:
        node.name = find.unused_name(node.outputs[0].name or node.op_type, taken)
    return bool(nameless)


def give_plain_names(model: ir.Model) -> bool:
    """Give each tensor a name without `_scale` and without a colon.

    ModelOpt takes `_scale` out of every name that it reads from a calibration cache, and splits a line at each colon.
    So it silently leaves `x_scale` unquantized, and fails at a colon. The inputs and outputs of the model keep their
    names, since engines are called by them.
    """
    taken, kept = find.names_in_use(model), {*model.graph.inputs, *model.graph.outputs}
    named = [(value.name or "", value) for value in find.all_values(model) if value not in kept]
    plain = [(name, name.replace("_scale", ".scale").replace(":", "."), value) for name, value in named]
    changed = [(name, plain_name, value) for name, plain_name, value in plain if plain_name != name]
    for _, plain_name, value in sorted(changed, key=lambda each: each[0]):
        value.name = find.unused_name(plain_name, taken)
    return bool(changed)


def lower_case_equations(model: ir.Model) -> bool:
    """Write the equation of each Einsum in small letters.

    PyTorch writes capital letters, which NVIDIA's parser refuses.
    """
    modified = False
    for node in find.find_nodes(model, "Einsum"):
        if not node.attributes["equation"].is_ref():
            equation = node.attributes["equation"].as_string()
            capitals = sorted(set(equation) & set(string.ascii_uppercase))
            free = sorted(set(string.ascii_lowercase) - set(equation))
            if 0 < len(capitals) <= len(free):  # not more axes than small letters
                lowered = equation.translate(str.maketrans("".join(capitals), "".join(free[: len(capitals)])))
                node.attributes["equation"] = ir.AttrString("equation", lowered)
                modified = True
    return modified


def name_squeezed_axes(model: ir.Model) -> bool:
    """Name the axes of a Squeeze that names none, where the batch varies.

    OpenVINO does not build such a Squeeze, since a batch of one would be dropped too. No model means that: an output
    without a batch is refused. A Squeeze stays as it is where a size is neither known nor a size of the inputs.
    """
    if model.opset_imports.get("", 1) < AXES_ARE_AN_INPUT:
        return False
    fed = [value for value in model.graph.inputs if not value.is_initializer()]
    varying = {size.value for value in fed for size in value.shape or () if isinstance(size, ir.SymbolicDim)} - {None}
    insert, modified = find.Inserter(model), False
    for node in find.find_nodes(model, "Squeeze"):
        sizes = find.sizes_of(node.inputs[0])
        symbols = {size.value for size in sizes if isinstance(size, ir.SymbolicDim)}
        axes = [axis for axis, size in enumerate(sizes) if size == 1]
        if axes and not any(node.inputs[1:]) and symbols and symbols <= varying:
            named = insert.constant(node, f"{node.outputs[0].name}.axes", axes)
            find.replace_inputs(node, [node.inputs[0], named])
            modified = True
    return modified


def pool_whole_images(model: ir.Model) -> bool:
    """Let a pooling whose window is larger than the image pool the whole image, as it does where `ceil_mode` lets it.

    OpenVINO 2026.4 refuses such a window. EfficientNet of transformers has one of as many pixels as it has channels.
    """
    found = [node for name in GLOBAL for node in find.find_nodes(model, name) if _reads_more_than_there_is(node)]
    for node in found:
        find.turn_into(node, GLOBAL[node.op_type], node.inputs)
    return bool(found)


def _reads_more_than_there_is(node: ir.Node) -> bool:
    settings = find.settings_of(node) or {}
    window, pads, dilations = (settings.get(name) or () for name in ("kernel_shape", "pads", "dilations"))
    if not settings.get("ceil_mode") or any(pads) or any(each > 1 for each in dilations) or len(node.outputs) > 1:
        return False
    sizes = [size for size in find.sizes_of(node.inputs[0])[2:] if isinstance(size, int)]
    if len(sizes) != len(window):
        return False
    strides = settings.get("strides") or [1] * len(window)
    beyond = [length - size for length, size in zip(window, sizes, strict=True)]
    return any(beyond) and all(0 <= more < stride for more, stride in zip(beyond, strides, strict=True))
