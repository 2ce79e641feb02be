import onnx_ir as ir

from enginewright.graph.passes.constants import add_constant
from enginewright.graph.passes.find import find_nodes, names_in_use, unused_name

AMOUNTS_ARE_AN_INPUT = 11  # from this opset on; before it, Pad takes its amounts as an attribute


class PadBeforePooling(ir.passes.InPlacePass):
    """Turn the padding of an AveragePool into a Pad node, where the average counts the padded zeros.

    OpenVINO's average in int8 is wrong at such an edge.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        poolings = [node for node in find_nodes(model, "AveragePool") if _counts_its_padding(node)]
        taken = names_in_use(model) if poolings else set()
        for node in poolings:
            _move_padding(model, node, taken)
        return ir.passes.PassResult(model, modified=bool(poolings))


def _counts_its_padding(node: ir.Node) -> bool:
    if any(attribute.is_ref() for attribute in node.attributes.values()):  # known only where the function is called
        return False
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    has_padding, counts_it = any(settings.get("pads", ())), settings.get("count_include_pad") == 1
    return has_padding and counts_it and not settings.get("ceil_mode")


def _move_padding(model: ir.Model, node: ir.Node, taken: set[str]) -> None:
    pads = node.attributes.pop("pads").as_ints()
    del node.attributes["count_include_pad"]
    half = len(pads) // 2
    all_axes = [0, 0, *pads[:half], 0, 0, *pads[half:]]
    padded = ir.val(unused_name(f"{node.outputs[0].name}.padded", taken))
    name = f"{node.name or node.outputs[0].name}.pad"
    if model.opset_imports.get("", 1) >= AMOUNTS_ARE_AN_INPUT:
        amounts = add_constant(model, node, unused_name(f"{padded.name}.pads", taken), all_axes)
        pad = ir.node("Pad", [node.inputs[0], amounts], outputs=[padded], name=name)
    else:
        pad = ir.node("Pad", [node.inputs[0]], {"pads": all_axes}, outputs=[padded], name=name)
    node.prepend(pad)
    node.replace_input_with(0, padded)
