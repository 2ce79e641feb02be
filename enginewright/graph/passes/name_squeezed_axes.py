import onnx_ir as ir

from enginewright.graph.passes.constants import add_constant
from enginewright.graph.passes.find import find_nodes, names_in_use, unused_name

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
