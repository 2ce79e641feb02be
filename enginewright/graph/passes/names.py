"""Change names, of nodes and tensors, and how axes are called: by an Einsum, a Squeeze and a Gather."""

import string

import onnx_ir as ir

from enginewright.graph.passes.find import (
    Inserter,
    all_values,
    find_nodes,
    names_in_use,
    replace_inputs,
    sizes_of,
    unused_name,
)

AXES_ARE_AN_INPUT = 13  # from this opset on; before it, Squeeze takes its axes as an attribute
CHANNELS = 1


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


def count_axes_from_end(model: ir.Model) -> bool:
    """Count the axis of channels from the end where a Gather puts them in another order.

    OpenVINO 2026.4 moves such an order into the weights of the Conv that follows, and moves it the wrong way around, in
    float32 as well: any order is lost that is not its own inverse. It knows the axis by a number that is not negative.
    """
    modified = False
    for node in find_nodes(model, "Gather"):
        axis, order, rank = node.attributes.get("axis"), node.inputs[1], len(sizes_of(node.inputs[0]))
        is_list = order is not None and order.const_value is not None and len(order.const_value.shape) == 1
        if axis is not None and axis.value == CHANNELS and is_list and rank > CHANNELS + 1:
            node.attributes["axis"] = ir.AttrInt64("axis", CHANNELS - rank)
            modified = True
    return modified
