import string

import onnx_ir as ir

from enginewright.graph.passes.find import add_constant, all_values, find_nodes, names_in_use, unused_name


class NameNodes(ir.passes.InPlacePass):
    """Name each node that has no name after its first output.

    `keep.nodes` and reports call nodes by name, and ModelOpt excludes all of them by an empty one.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nameless = [node for node in model.graph if not node.name]
        taken = {node.name for node in model.graph if node.name}
        for node in nameless:
            node.name = unused_name(node.outputs[0].name or node.op_type, taken)
        return ir.passes.PassResult(model, modified=bool(nameless))


class GivePlainNames(ir.passes.InPlacePass):
    """Give each tensor a name without `_scale` and without a colon.

    ModelOpt takes `_scale` out of every name that it reads from a calibration cache, and splits a line at each colon.
    So it silently leaves `x_scale` unquantized, and fails at a colon. The inputs and outputs of the model keep their
    names, since engines are called by them.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        taken = names_in_use(model)
        kept = {*model.graph.inputs, *model.graph.outputs}
        modified = False
        for value in sorted((value for value in all_values(model) if value not in kept), key=_name_of):
            plain = _name_of(value).replace("_scale", ".scale").replace(":", ".")
            if plain != value.name:
                value.name = unused_name(plain, taken)
                modified = True
        return ir.passes.PassResult(model, modified=modified)


def _name_of(value: ir.Value) -> str:
    return value.name or ""


class LowerCaseEquations(ir.passes.InPlacePass):
    """Write the equation of each Einsum in small letters.

    PyTorch writes capital letters, which NVIDIA's parser refuses.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for node in find_nodes(model, "Einsum"):
            attribute = node.attributes["equation"]
            if not attribute.is_ref():
                equation = attribute.as_string()
                lowered = _in_small_letters(equation)
                modified |= lowered != equation
                node.attributes["equation"] = ir.AttrString("equation", lowered)
        return ir.passes.PassResult(model, modified=modified)


def _in_small_letters(equation: str) -> str:
    capitals = sorted(set(equation) & set(string.ascii_uppercase))
    free = sorted(set(string.ascii_lowercase) - set(equation))
    if len(capitals) > len(free):  # more axes than small letters
        return equation
    return equation.translate(str.maketrans("".join(capitals), "".join(free[: len(capitals)])))


AXES_ARE_AN_INPUT = 13  # from this opset on; before it, Squeeze takes its axes as an attribute


class NameSqueezedAxes(ir.passes.InPlacePass):
    """Name the axes of a Squeeze that names none, where the batch varies.

    OpenVINO does not build such a Squeeze, since a batch of one would be dropped too. No model means that: an output
    without a batch is refused. A Squeeze stays as it is where a size is neither known nor a size of the inputs.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        if model.opset_imports.get("", 1) < AXES_ARE_AN_INPUT:
            return ir.passes.PassResult(model, modified=False)
        fed = [value for value in model.graph.inputs if not value.is_initializer()]
        varying = {size.value for value in fed for size in value.shape or () if isinstance(size, ir.SymbolicDim)}
        found = [(node, _squeezed_axes(node, varying - {None})) for node in find_nodes(model, "Squeeze")]
        to_name = [(node, axes) for node, axes in found if axes]
        taken = names_in_use(model) if to_name else set()
        for node, axes in to_name:
            name = unused_name(f"{node.outputs[0].name}.axes", taken)
            node.resize_inputs(2)
            node.replace_input_with(1, add_constant(model, node, name, axes))
        return ir.passes.PassResult(model, modified=bool(to_name))


def _squeezed_axes(node: ir.Node, varying: set[str | None]) -> list[int]:
    """Return the axes of size one, or an empty list where the Squeeze is to stay as it is."""
    squeezed, *axes = node.inputs
    if squeezed is None or squeezed.shape is None or any(axes):
        return []
    symbols = {size.value for size in squeezed.shape if isinstance(size, ir.SymbolicDim)}
    is_certain = bool(symbols) and symbols <= varying
    return [axis for axis, size in enumerate(squeezed.shape) if size == 1] if is_certain else []


CHANNELS = 1


class CountAxesFromEnd(ir.passes.InPlacePass):
    """Count the axis of channels from the end where a Gather puts them in another order.

    OpenVINO 2026.4 moves such an order into the weights of the Conv that follows, and moves it the wrong way around, in
    float32 as well: any order is lost that is not its own inverse. It knows the axis by a number that is not negative.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for node in find_nodes(model, "Gather") if _puts_channels_in_order(node)]
        for node in found:
            node.attributes["axis"] = ir.AttrInt64("axis", CHANNELS - _rank(node))
        return ir.passes.PassResult(model, modified=bool(found))


def _puts_channels_in_order(node: ir.Node) -> bool:
    axis, order = node.attributes.get("axis"), node.inputs[1]
    is_list = order is not None and order.const_value is not None and len(order.const_value.shape) == 1
    return axis is not None and axis.value == CHANNELS and is_list and _rank(node) > CHANNELS + 1


def _rank(node: ir.Node) -> int:
    value = node.inputs[0]
    return len(value.shape) if value is not None and value.shape is not None else 0
