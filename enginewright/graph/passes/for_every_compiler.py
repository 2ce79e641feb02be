"""The passes that are good for every compiler and quantizer: names, axes and poolings that some of them mistake."""

import string

import onnx_ir as ir

from enginewright.graph.passes.find import (
    Inserter,
    all_values,
    find_nodes,
    names_in_use,
    replace_inputs,
    settings_of,
    sizes_of,
    turn_into,
    unused_name,
)

AXES_ARE_AN_INPUT = 13  # from this opset on; before it, Squeeze takes its axes as an attribute
GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


def name_nodes(model: ir.Model) -> bool:
    """Name each node that has no name after its first output.

    `keep.nodes` and reports call nodes by name, and ModelOpt excludes all of them by an empty one.
    """
    nameless = [node for node in model.graph if not node.name]
    taken = {node.name for node in model.graph if node.name}
    for node in nameless:
        node.name = unused_name(node.outputs[0].name or node.op_type, taken)
    return bool(nameless)


def give_plain_names(model: ir.Model) -> bool:
    """Give each tensor a name without `_scale` and without a colon.

    ModelOpt takes `_scale` out of every name that it reads from a calibration cache, and splits a line at each colon.
    So it silently leaves `x_scale` unquantized, and fails at a colon. The inputs and outputs of the model keep their
    names, since engines are called by them.
    """
    taken, kept = names_in_use(model), {*model.graph.inputs, *model.graph.outputs}
    named = [(value.name or "", value) for value in all_values(model) if value not in kept]
    plain = [(name, name.replace("_scale", ".scale").replace(":", "."), value) for name, value in named]
    changed = [(name, plain_name, value) for name, plain_name, value in plain if plain_name != name]
    for _, plain_name, value in sorted(changed, key=lambda each: each[0]):
        value.name = unused_name(plain_name, taken)
    return bool(changed)


def lower_case_equations(model: ir.Model) -> bool:
    """Write the equation of each Einsum in small letters.

    PyTorch writes capital letters, which NVIDIA's parser refuses.
    """
    modified = False
    for node in find_nodes(model, "Einsum"):
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
    insert, modified = Inserter(model), False
    for node in find_nodes(model, "Squeeze"):
        sizes = sizes_of(node.inputs[0])
        symbols = {size.value for size in sizes if isinstance(size, ir.SymbolicDim)}
        axes = [axis for axis, size in enumerate(sizes) if size == 1]
        if axes and not any(node.inputs[1:]) and symbols and symbols <= varying:
            named = insert.constant(node, f"{node.outputs[0].name}.axes", axes)
            replace_inputs(node, [node.inputs[0], named])
            modified = True
    return modified


def pool_whole_images(model: ir.Model) -> bool:
    """Let a pooling whose window is larger than the image pool the whole image, as it does where `ceil_mode` lets it.

    OpenVINO 2026.4 refuses such a window. EfficientNet of transformers has one of as many pixels as it has channels.
    """
    found = [node for name in GLOBAL for node in find_nodes(model, name) if _reads_more_than_there_is(node)]
    for node in found:
        turn_into(node, GLOBAL[node.op_type], node.inputs)
    return bool(found)


def _reads_more_than_there_is(node: ir.Node) -> bool:
    settings = settings_of(node) or {}
    window, pads, dilations = (settings.get(name) or () for name in ("kernel_shape", "pads", "dilations"))
    if not settings.get("ceil_mode") or any(pads) or any(each > 1 for each in dilations) or len(node.outputs) > 1:
        return False
    sizes = [size for size in sizes_of(node.inputs[0])[2:] if isinstance(size, int)]
    if len(sizes) != len(window):
        return False
    strides = settings.get("strides") or [1] * len(window)
    beyond = [length - size for length, size in zip(window, sizes, strict=True)]
    return any(beyond) and all(0 <= more < stride for more, stride in zip(beyond, strides, strict=True))
