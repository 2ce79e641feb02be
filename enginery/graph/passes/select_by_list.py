import onnx_ir as ir

from enginery.graph.passes.constants import add_constant
from enginery.graph.passes.find import find_nodes, names_in_use, unused_name

AXES_ARE_AN_INPUT = 13  # from this opset on; before it, Squeeze takes its axes as an attribute


class SelectByList(ir.passes.InPlacePass):
    """Give a Gather that selects one place a list with that place, and remove the axis by a Squeeze.

    OpenVINO moves the scales of an int8 product behind a Gather, such as that of the last token's vector. Where the
    place is a scalar, it leaves them the axis that the Gather has removed, and the result gets one more.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        has_axes = model.opset_imports.get("", 1) >= AXES_ARE_AN_INPUT
        selecting = [node for node in find_nodes(model, "Gather") if has_axes and _selects_one(node)]
        taken = names_in_use(model) if selecting else set()
        for node in selecting:
            _select_by_list(model, node, taken)
        return ir.passes.PassResult(model, modified=bool(selecting))


def _selects_one(node: ir.Node) -> bool:
    """Tell whether it takes one place, which is known, of what is computed."""
    data, place = node.inputs
    if data is None or data.const_value is not None or place is None or place.const_value is None:
        return False
    is_known = not any(attribute.is_ref() for attribute in node.attributes.values())
    return is_known and place.const_value.size == 1 and not place.const_value.shape


def _select_by_list(model: ir.Model, node: ir.Node, taken: set[str]) -> None:
    (result,), (data, place) = node.outputs, node.inputs
    assert place is not None
    assert place.const_value is not None
    axis = node.attributes.pop("axis").as_int() if "axis" in node.attributes else 0
    listed, axes = (unused_name(f"{result.name}.{what}", taken) for what in ("places", "axes"))
    selected = ir.val(unused_name(f"{result.name}.selected", taken))
    places = add_constant(model, node, listed, place.const_value.numpy().reshape(1))
    name = f"{node.name or result.name}.select"
    node.prepend(ir.node("Gather", [data, places], {"axis": axis}, outputs=[selected], name=name))
    node.op_type = "Squeeze"
    node.replace_input_with(0, selected)
    node.replace_input_with(1, add_constant(model, node, axes, [axis]))
