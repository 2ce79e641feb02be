import onnx_ir as ir

from enginewright.graph.passes.find import find_nodes, names_in_use, unused_name


class SpellOutHardSwish(ir.passes.InPlacePass):
    """Turn each HardSwish into a HardSigmoid and a product, which compute the same.

    NVIDIA's parser refuses HardSwish in bf16, and accepts the other two.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        swishes = find_nodes(model, "HardSwish")
        taken = names_in_use(model) if swishes else set()
        for node in swishes:
            gate = ir.val(unused_name(f"{node.outputs[0].name}.gate", taken))
            slopes = {"alpha": 1 / 6, "beta": 0.5}
            node.prepend(
                ir.node(
                    "HardSigmoid", node.inputs, slopes, outputs=[gate], name=f"{node.name or node.outputs[0].name}.gate"
                )
            )
            node.op_type = "Mul"
            node.resize_inputs(2)
            node.replace_input_with(1, gate)
        return ir.passes.PassResult(model, modified=bool(swishes))
