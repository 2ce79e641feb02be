import onnx_ir as ir

from enginewright.graph.passes.find import all_values, names_in_use, unused_name


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
