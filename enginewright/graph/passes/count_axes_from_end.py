import onnx_ir as ir

from enginewright.graph.passes.find import find_nodes

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
