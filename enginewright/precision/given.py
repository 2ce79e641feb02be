"""A graph that is quantized already: its floats, its Q/DQ nodes as a compiler takes them, and what none fuses."""

from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx.reference import ReferenceEvaluator

from enginewright.core.errors import EnginewrightError
from enginewright.core.text import first_few
from enginewright.graph.passes import changed_by
from enginewright.graph.passes.find import Inserter, constant_of, find_nodes, remove_unused, turn_into
from enginewright.graph.shapes import as_ir
from enginewright.precision.dialect import Dialect
from enginewright.precision.fusion import ACTIVATIONS, Pair, ends_product, is_rounded, pair_before, readers_of
from enginewright.precision.placement import PASSED_ON, PRODUCTS, array_of, is_sum, only_reader

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
        pair = pair_before(node.outputs[0])
        floats = _within_its_range(pair.quantize, insert) if pair else _constant_floats(node, insert)
        if floats is None:
            raise EnginewrightError(
                f"{node.name or node.outputs[0].name} dequantizes what {maker.op_type if maker else 'an input'} makes, "
                "and only pairs of QuantizeLinear and DequantizeLinear can be taken out: let the quantizer write QDQ"
            )
        turn_into(node, "Identity", [floats])
    remove_unused(model)
    return bool(found)


def _constant_floats(node: ir.Node, insert: Inserter) -> ir.Value | None:
    """Return what a DequantizeLinear makes of a constant as a constant, or None if it reads anything else."""
    given = {each.name or "": ir.convenience.get_const_tensor(each) for each in node.inputs if each}
    if any(tensor is None for tensor in given.values()):
        return None
    arrays = {name: tensor.numpy() for name, tensor in given.items() if tensor}
    (floats,) = ReferenceEvaluator(ir.to_proto(node)).run(None, arrays)
    return insert.constant(node, f"{node.outputs[0].name}.floats", floats)


def _within_its_range(node: ir.Node, insert: Inserter) -> ir.Value | None:
    """Return what a QuantizeLinear reads; between the ends of its range, where that begins at zero: ONNX Runtime's
    quantizer leaves out a Relu or Clip that the range stands for."""
    value, scales, zeros = node.inputs[0], constant_of(node.inputs[1]), constant_of((*node.inputs, None)[2]) or [0]
    stored = node.outputs[0].dtype or ir.DataType.UINT8
    if value and scales and all(zero == LOWEST.get(stored) for zero in zeros) and not _is_never_negative(value):
        kind = value.dtype or ir.DataType.FLOAT
        most = max(scales) * (2**stored.bitwidth - 1)
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


# Put Q/DQ nodes where a compiler has a kernel. None of this changes a float: what is rounded stays as it is if it is
# rounded again, and a Relu, or what passes numbers on, may come before that or behind it.

MOVED_OVER = PASSED_ON - {"Pad", "Split"}  # what a Pad adds may lie between two steps, and a Split has several results
READ_AS_BYTES = PASSED_ON | PRODUCTS | {"Add"}
ROUNDING = ("QuantizeLinear", "DequantizeLinear")
AROUND_128 = (ir.DataType.UINT8, {128})
UNSIGNED = (ir.DataType.UINT8, ir.DataType.UINT16)


def as_compiler_takes(model: onnx.ModelProto, precision: str, dialect: Dialect) -> onnx.ModelProto:
    """Return the graph with Q/DQ nodes as the compiler of this dialect fuses them. Refuse those that it lacks."""
    is_tensorrt = dialect.compiler == "tensorrt"
    others = (dequantize_biases, sign_bytes) if is_tensorrt else (round_early,)
    made = changed_by(model, *others, partial(round_at_relus, dialect.compiler == "cpu")) or model
    zeros = {node.name or "": _zero(node) for node in as_ir(made).graph if node.op_type == "DequantizeLinear"}
    uneven = [name for name, (kind, found) in zeros.items() if found != {0} or kind in UNSIGNED]
    if is_tensorrt and uneven:
        raise EnginewrightError(
            f"precisions.{precision}.from: TensorRT takes no zero points and no unsigned bytes, which the model has at "
            f"{first_few(uneven)}: quantize it symmetrically to {precision}, or set this to searched or calibrated"
        )
    return made


def round_early(model: ir.Model) -> bool:
    """Round before what only passes numbers on. OpenVINO 2026.4 rounds behind it in a kernel of its own; TensorRT moves
    Q/DQ nodes itself."""
    insert = Inserter(model)
    for node in [node for node in reversed(model.graph) if node.op_type in MOVED_OVER]:
        values = [value for value in node.inputs[: None if node.op_type == "Concat" else 1] if value]
        behind, before = _pair_behind(node), {value: pair_before(value) for value in values}
        is_alone = node.op_type == "Concat" or only_reader(values[0]) is not None
        if behind and is_alone and all(not pair or _grid(pair) == _grid(behind) for pair in before.values()):
            rounded = {value: value if pair else _rounded(value, behind, insert) for value, pair in before.items()}
            for place, value in enumerate(values):
                node.replace_input_with(place, rounded[value])
            for dequantize in readers_of(behind.quantize):
                dequantize.outputs[0].replace_all_uses_with(node.outputs[0])
    return remove_unused(model)


def round_at_relus(twice: bool, model: ir.Model) -> bool:
    """Round behind a Relu what is rounded before it, so that products read bytes, and not before it. Or round `twice`:
    ONNX Runtime 1.31 has no kernel for a product and its Relu that returns signed bytes."""
    insert, modified = Inserter(model), False
    for node in find_nodes(model, "Relu"):
        value, result = node.inputs[0], node.outputs[0]
        before, behind = pair_before(value), _pair_behind(node)
        if before and not behind and _grid(before) and READ_AS_BYTES & {each.op_type for each in readers_of(node)}:
            uses, rounded = result.uses(), _rounded(result, before, insert)
            for use in uses:
                use.node.replace_input_with(use.idx, rounded)
            behind, modified = before, True
        is_product = value is not None and only_reader(value) is not None and ends_product(value)
        if twice and is_product and behind and not before and _zero(behind.quantize) == (ir.DataType.INT8, {0}):
            node.replace_input_with(0, _rounded(value, behind, insert))
            modified = True
        is_same = before and behind and before.serves(node) and _grid(before) == _grid(behind)
        if not twice and before and is_same and not result.is_graph_output():
            node.replace_input_with(0, before.exact)
            modified = True
    remove_unused(model)
    return modified


def dequantize_biases(model: ir.Model) -> bool:
    """Write biases of 32 bits, as ONNX Runtime's quantizer makes them, as floats. TensorRT's parser refuses them."""
    insert, nodes = Inserter(model), find_nodes(model, "DequantizeLinear")
    wide = [node for node in nodes if node.inputs[0] and node.inputs[0].dtype == ir.DataType.INT32]
    found = [(node, floats) for node in wide if (floats := _constant_floats(node, insert))]
    for node, floats in found:
        node.outputs[0].replace_all_uses_with(floats)
    remove_unused(model)
    return bool(found)


def sign_bytes(model: ir.Model) -> bool:
    """Let signed bytes stand for unsigned ones around 128, which TensorRT lacks, unless something else reads those."""
    insert, (quantizing, others) = Inserter(model), (find_nodes(model, name) for name in ROUNDING)
    together = [[node, *readers_of(node)] for node in quantizing if not node.outputs[0].is_graph_output()]
    together += [[node] for node in others if node.inputs[0] and node.inputs[0].const_value]
    found = [nodes for nodes in together if all(n.op_type in ROUNDING and _zero(n) == AROUND_128 for n in nodes)]
    for node in (node for nodes in found for node in nodes):
        for place, value in enumerate(node.inputs):
            if value and value.const_value and value.dtype == ir.DataType.UINT8:
                signed = (array_of(value).astype(np.int16) - 128).astype(np.int8)
                node.replace_input_with(place, insert.constant(node, f"{value.name}.signed", signed))
        if node.op_type == "QuantizeLinear":
            node.attributes.pop("output_dtype", None)
            node.outputs[0].dtype = ir.DataType.INT8
    remove_unused(model)
    return bool(found)


def _zero(node: ir.Node) -> tuple[ir.DataType | None, set[Any]]:
    """Return the type of the bytes of a Q/DQ node, which its zero points share, and what those are."""
    zero = (*node.inputs, None, None)[2]
    stored = zero or (node.outputs if node.op_type == "QuantizeLinear" else node.inputs)[0]
    return (stored.dtype if stored else None), set(constant_of(zero) or [0])


def _grid(pair: Pair) -> tuple[object, ...] | None:
    """Return the scale and the zero point by which nodes round a whole tensor, or None if they do not."""
    grids = [(constant_of(node.inputs[1]), *_zero(node)) for node in pair if len(node.inputs) == 3]
    return grids[0] if len(grids) == 2 and grids[0] == grids[1] and len(grids[0][0] or ()) == 1 else None


def _pair_behind(node: ir.Node) -> Pair | None:
    """Return the nodes that round what a node makes, if nothing else reads it."""
    reader = only_reader(node.outputs[0]) if len(node.outputs) == 1 else None
    pairs = [Pair(reader[0], each) for each in readers_of(reader[0])] if reader else []
    are_pairs = all(pair.dequantize.op_type == "DequantizeLinear" and _grid(pair) for pair in pairs)
    is_returned = any(value.is_graph_output() for pair in pairs for each in pair for value in each.outputs)
    return pairs[0] if pairs and are_pairs and not is_returned else None


def _rounded(value: ir.Value | None, like: Pair, insert: Inserter) -> ir.Value:
    """Round a value where it is made."""
    assert value is not None
    to_bytes = insert.behind(value, "QuantizeLinear", [value, *like.quantize.inputs[1:]], f"{value.name}.bytes")
    return insert.behind(to_bytes, "DequantizeLinear", [to_bytes, *like.dequantize.inputs[1:]], f"{value.name}.rounded")


# Say what no compiler fuses, and why.


def unfused(model: onnx.ModelProto, dialect: Dialect) -> tuple[str, ...]:
    """Name the nodes for which no kernel takes the Q/DQ nodes around them, in a sentence for each reason."""
    found: dict[str, list[str]] = {}
    for node in as_ir(model).graph:
        if why := _why_unfused(node, dialect.exact_sums):
            found.setdefault(why, []).append(node.name or "")
    return tuple(f"{first_few(names, 20)}: {why}." for why, names in found.items())


def _why_unfused(node: ir.Node, exact_sums: bool) -> str | None:
    if node.op_type == "Concat":
        grids = [_grid(pair) for pair in map(pair_before, node.inputs) if pair]
        return "what is joined has several scales" if any(grid != grids[0] for grid in grids) else None
    if node.op_type not in PRODUCTS and not is_sum(node):
        return None
    in_bytes = set(map(is_rounded, node.inputs[:2]))
    own = [value for value in node.inputs if value and is_sum(node) and only_reader(value)]
    if len(in_bytes) > 1 and not any(map(ends_product, own)):
        return "one operand is in bytes and the other in floats"
    if exact_sums and in_bytes == {True} and any(pair and ends_product(pair.exact) for pair in map(pair_before, own)):
        return "what a product makes for a sum alone is rounded before that"
    behind = _pair_behind(node)
    readers = {each.op_type for back in readers_of(behind.quantize) for each in readers_of(back)} if behind else set()
    activations = sorted(readers - {"Mul"})  # which a SiLU has, too
    if activations and readers <= ACTIVATIONS - {"Relu"}:
        return f"a product is rounded before its {first_few(activations)}"
    return None
