import onnx_ir as ir

from enginewright.graph.passes.find import unused_name


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
