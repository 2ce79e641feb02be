import string

import onnx_ir as ir

from enginewright.graph.passes.find import find_nodes


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
