"""Take the Q/DQ nodes out of a graph that is quantized already: what is left are its floats."""

import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from enginewright.core.errors import EnginewrightError
from enginewright.graph.passes.find import Inserter, constant_of, find_nodes, remove_unused, turn_into

NOT_NEGATIVE = ("HardSigmoid", "Relu", "Sigmoid", "Softmax")
POOLS = ("AveragePool", "GlobalAveragePool", "MaxPool", "ReduceMean")
KEEP_SIGNS = (*POOLS, "Concat", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose")
LOWEST = {ir.DataType.UINT8: 0, ir.DataType.UINT16: 0, ir.DataType.INT8: -128, ir.DataType.INT16: -32768}


def types_of_rounding(model: onnx.ModelProto) -> set[str]:
    """Return ONNX's names of the types that it rounds to."""
    stored = {tensor.name: onnx.TensorProto.DataType.Name(tensor.data_type) for tensor in model.graph.initializer}
    read = [node.input for node in model.graph.node if node.op_type == "DequantizeLinear"]
    return {stored[name] for names in read for name in (names[0], *names[2:]) if name in stored}


def take_out_rounding(model: ir.Model) -> bool:
    """Let what reads a DequantizeLinear read the floats that were quantized, or a constant dequantized."""
    insert, found = Inserter(model), find_nodes(model, "DequantizeLinear")
    for node in found:
        maker = node.inputs[0].producer() if node.inputs[0] else None
        if maker and maker.op_type == "QuantizeLinear":
            turn_into(node, "Identity", [_within_its_range(maker, insert)])
            continue
        given = {each.name or "": ir.convenience.get_const_tensor(each) for each in node.inputs if each}
        if any(tensor is None for tensor in given.values()):
            raise EnginewrightError(
                f"{node.name or node.outputs[0].name} dequantizes what {maker.op_type if maker else 'an input'} makes, "
                "and only pairs of QuantizeLinear and DequantizeLinear can be taken out: let the quantizer write QDQ"
            )
        arrays = {name: tensor.numpy() for name, tensor in given.items() if tensor}
        (floats,) = ReferenceEvaluator(ir.to_proto(node)).run(None, arrays)
        turn_into(node, "Identity", [insert.constant(node, f"{node.outputs[0].name}.floats", floats)])
    remove_unused(model)
    return bool(found)


def _within_its_range(node: ir.Node, insert: Inserter) -> ir.Value | None:
    """Return what a QuantizeLinear reads; between the ends of its range, where that begins at zero: ONNX Runtime's
    quantizer leaves out a Relu or Clip that the range stands for."""
    value, scales, zeros = node.inputs[0], constant_of(node.inputs[1]), constant_of((*node.inputs, None)[2]) or [0]
    lowest = LOWEST.get(node.outputs[0].dtype or ir.DataType.UINT8)
    if scales and all(zero == lowest for zero in zeros) and not _is_never_negative(value):
        assert value is not None
        kind = value.dtype or ir.DataType.FLOAT
        most = max(scales) * (255 if lowest in (0, -128) else 65535)
        ends = [insert.constant(node, f"{value.name}.{end}", kind.numpy().type(end)) for end in (0, most)]
        node.replace_input_with(0, insert.node(node, "Clip", [value, *ends], f"{value.name}.in.range"))
    return node.inputs[0]


def _is_never_negative(value: ir.Value | None) -> bool:
    """Tell whether no activation can be missing behind a value: it has one, or is an input or a constant."""
    maker = value.producer() if value else None
    if maker is None or maker.op_type in NOT_NEGATIVE:
        return True
    if maker.op_type == "Clip":
        return bool(min(constant_of((*maker.inputs, None)[1]) or [-1]) >= 0)
    read = maker.inputs if maker.op_type == "Concat" else maker.inputs[:1]
    return maker.op_type in KEEP_SIGNS and all(map(_is_never_negative, read))
