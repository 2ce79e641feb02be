"""Make int8 and fp8 graphs for TensorRT: ModelOpt places Q/DQ nodes, which `fusion` mends, and the scales are ours."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import scratch_folder
from enginewright.core.params.precisions import Keep, Rest
from enginewright.data.feeds import NO_SAMPLE, Feeds
from enginewright.graph.data_apart import in_memory
from enginewright.graph.files import data_of
from enginewright.graph.onnx_file import graph_inputs, load_graph, save_graph
from enginewright.graph.passes.find import Inserter, add_constant
from enginewright.graph.shapes import shapes_of
from enginewright.precision.calibration.cache import read_cache, write_cache
from enginewright.precision.cast import calling_modelopt, trial_batch
from enginewright.precision.floats import LARGEST_FLOAT16, SMALLEST_FLOAT16_SCALE, kept_nodes, nodes_adding_scattered
from enginewright.precision.fusion import Pair, mend_fusions, pair_before, set_array
from enginewright.precision.placement import array_of
from enginewright.precision.write_int8 import Rounded

# TensorRT 10.6 writes the sums of an fp8 Conv as float16 before it multiplies them by the scales, if an Add follows. On
# an H200, ResNet-18's were infinite there. Half of the range leaves room for more than was calibrated.
LARGEST_FP8_SUM = LARGEST_FLOAT16 / 2
LARGE = 1 << 14  # bytes of a tensor, from which on it has a stand-in


def quantize(
    source: Path, precision: str, amax: Mapping[str, float], keep: Keep, rest: Rest, sample: Feeds = NO_SAMPLE
) -> onnx.ModelProto:
    """Return the graph with Q/DQ nodes, which ModelOpt places where TensorRT fuses them, and with our scales.

    The scales and all unquantized nodes have the type `rest`. `sample` is one that the graph accepts. A tensor without
    a range stays as it is.
    """
    graph = load_graph(source)
    kept = kept_nodes(keep, graph)
    light, replaced = with_stand_ins(graph, kept)
    tried = trial_batch(source, sample)
    with scratch_folder() as scratch:
        given, cache, target = (scratch / name for name in ("model.onnx", "calibration.cache", "quantized.onnx"))
        save_graph(light, given)  # anew, as ModelOpt changes the file of some graphs
        write_cache(amax, cache)
        with calling_modelopt(precision):
            from modelopt.onnx.quantization import quantize as modelopt_quantize

            modelopt_quantize(
                str(given),
                quantize_mode=precision,
                calibration_data=tried,  # ModelOpt runs it, but takes the ranges from the cache
                calibration_shapes=",".join(f"{name}:{'x'.join(map(str, each.shape))}" for name, each in tried.items()),
                calibration_cache_path=str(cache),
                calibration_eps=["cpu"],
                op_types_to_exclude=list(keep.op_types),
                nodes_to_exclude=keep.whole_names,
                high_precision_dtype=rest,
                op_types_to_exclude_fp16=sorted({node.op_type for node in nodes_adding_scattered(graph)}),
                output_path=str(target),
                use_external_data_format=data_of(given).exists(),
                enable_shared_constants_duplication=not replaced,
                log_level="ERROR",
            )
        made, written = ir.from_proto(in_memory(load_graph(target))), read_cache(cache)  # the files do not stay
    if rest == "fp32":
        _set_float16_scales(made, graph)
    if precision == "fp8":
        _set_fp8_scales(made, written)
    _require_usable_scales(made)
    for (name, place), weights in replaced.items():
        _put_back(made, made.graph.node(name), place, weights)
    if precision == "fp8":
        _set_fp8_weight_scales(made, amax)
    mend_fusions(made, kept)
    return ir.to_proto(made)


# Let ModelOpt see one of the large weights of each shape in the place of all of them. It holds twelve copies of the
# weights at once, and goes through them again and again. Where it puts Q/DQ nodes depends on shapes, not on values.


class Operand(NamedTuple):
    node: str
    place: int


def with_stand_ins(model: onnx.ModelProto, kept: Collection[str]) -> tuple[onnx.ModelProto, dict[Operand, ir.Value]]:
    """Return a copy in which nodes share their large weights, and the weights that they had.

    A node in `kept` shares with others in `kept`. Small constants that are shared already become copies, which ModelOpt
    makes itself only where it may copy all.
    """
    light = ir.from_proto(model)
    add = Inserter(light)
    stand_ins: dict[tuple[object, ...], ir.Value] = {}
    replaced: dict[Operand, ir.Value] = {}
    seen = set[ir.Value]()
    for node in light.graph:
        for place, value in enumerate(node.inputs):
            if value is None or value.const_value is None:
                continue
            if value.const_value.nbytes < LARGE:
                if value in seen:
                    node.replace_input_with(place, add.constant(node, value.name or "", value.const_value.numpy()))
                seen.add(value)
            elif len(value.uses()) == 1:
                alike = node.op_type, place, node.name in kept, value.dtype, *value.const_value.shape
                if alike in stand_ins:
                    node.replace_input_with(place, stand_ins[alike])
                    replaced[Operand(node.name or "", place)] = light.graph.initializers.pop(value.name or "")
                elif value.const_value.numpy().any():  # zeros have a scale that tells nothing
                    stand_ins[alike] = value
    return ir.to_proto(light), replaced


def _put_back(model: ir.Model, node: ir.Node, place: int, weights: ir.Value) -> None:
    """Give a node its own weights, in the type of their stand-in, and Q/DQ nodes of their own."""
    pair = pair_before(node.inputs[place])
    stand_in, array = array_of(pair.exact if pair else node.inputs[place]), array_of(weights)
    limits = np.finfo(stand_in.dtype)
    own = add_constant(model, node, weights.name or "", array.clip(limits.min, limits.max).astype(stand_in.dtype))
    scales: dict[ir.Value | None, ir.Value] = {}  # two in a float16 graph, otherwise one
    for each in pair or ():
        _, scale, zero = each.inputs
        if scale not in scales:
            name = f"{weights.name}_scale{len(scales) or ''}"
            scales[scale] = add_constant(model, node, name, _scale_like(array_of(scale), each, stand_in, array))
        rounded = ir.val(f"{weights.name}_{each.op_type}", type=each.outputs[0].type, shape=each.outputs[0].shape)
        given = [own, scales[scale], zero]
        node.prepend(ir.node(each.op_type, given, dict(each.attributes), outputs=[rounded], name=rounded.name))
        own = rounded
    node.replace_input_with(place, own)


def _scale_like(given: NDArray[Any], node: ir.Node, stand_in: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return the scales of weights, for each channel or for all: to these, as the given ones are to the stand-in."""
    channel = node.attributes["axis"].as_int() % array.ndim if given.size > 1 else None
    others = tuple(axis for axis in range(array.ndim) if axis != channel)
    widest, own = (np.abs(each).max(axis=others).astype(np.float32) for each in (stand_in, array))
    exact = own * (given.flat[widest.argmax()].astype(np.float32) / widest.max())
    made = np.where(exact > 0, exact, 1).reshape(given.shape).astype(given.dtype)
    return np.asarray(np.maximum(made, np.finfo(given.dtype).smallest_subnormal))


# Write scales, and weights that are rounded already.


def _pairs(model: ir.Model) -> list[Pair]:
    return [pair for node in model.graph if (pair := pair_before(node.outputs[0]))]


def _set_float16_scales(model: ir.Model, source: onnx.ModelProto) -> None:
    """Write float16 scales for float16 tensors of the source, whose scales ModelOpt writes in float32 from a cache."""
    if all(value.dtype != ir.DataType.FLOAT16 for value in model.graph.initializers.values()):
        return
    given = shapes_of(source).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*given.input, *given.value_info)}
    for pair in _pairs(model):
        if types.get(pair.exact.name) == onnx.TensorProto.FLOAT16:
            set_array(pair.scale, array_of(pair.scale).astype(np.float16))


def _set_fp8_scales(model: ir.Model, amax: Mapping[str, float]) -> None:
    """Write the calibrated scales, since ModelOpt's fp8 mode ignores the cache and takes those of its zeros."""
    ranges: dict[ir.Value, float] = {}  # by scale, since the inputs of a Concat share one
    for pair in _pairs(model):
        name, maker = pair.exact.name or "", pair.exact.producer()
        # A float16 graph casts its input, and the ranges are those of the tensor before the cast.
        if name not in amax and maker is not None and maker.op_type == "Cast" and maker.inputs[0] is not None:
            name = maker.inputs[0].name or ""
        if name in amax:
            for scale in pair.scales:
                ranges[scale] = max(ranges.get(scale, 0.0), amax[name])
    for scale, value in ranges.items():
        set_array(scale, np.array(value / PRECISIONS["fp8"].largest, array_of(scale).dtype))


def _set_fp8_weight_scales(model: ir.Model, amax: Mapping[str, float]) -> None:
    """Let each channel of weights use all of fp8's range, where ModelOpt's use 36 of 448, or what keeps the sums of a
    product within float16."""
    for product in model.graph:
        activation, back = map(pair_before, product.inputs[:2]) if len(product.inputs) > 1 else (None, None)
        if activation is None or back is None or back.exact.const_value is None:
            continue
        weights, axis = array_of(back.exact).astype(np.float64), back.quantize.attributes.get_int("axis", 1)
        scales = array_of(back.scale)
        others = tuple(each for each in range(weights.ndim) if scales.size == 1 or each != axis % weights.ndim)
        needed = np.abs(weights).max(axis=others) / PRECISIONS["fp8"].largest
        bias = product.inputs[2] if len(product.inputs) > 2 else None
        largest = amax.get(product.outputs[0].name or "", 0.0)
        if bias is not None and bias.const_value is not None:
            largest += float(np.abs(array_of(bias)).max())
        step = float(array_of(activation.scale))
        written = np.maximum(needed, max(largest / (step * LARGEST_FP8_SUM), SMALLEST_FLOAT16_SCALE))
        for scale in back.scales:
            set_array(scale, written.reshape(scales.shape).astype(scales.dtype))


def set_weights(model: onnx.ModelProto, largest: int, rounded: Rounded) -> onnx.ModelProto:
    """Return an int8 graph with larger scales, with which no quantized weight is larger than that, and with multiples
    of the scales in place of the weights that are `rounded` already, so that rounding takes these bytes."""
    changed = ir.from_proto(model)
    of_weights = [pair for pair in _pairs(changed) if pair.exact.const_value is not None]
    for scale in {scale for pair in of_weights for scale in pair.scales}:
        scales = array_of(scale)
        set_array(scale, scales * scales.dtype.type(PRECISIONS["int8"].largest / largest))
    for pair in of_weights:
        steps = rounded.get(pair.exact.name or "")
        if steps is not None and pair.scale.const_value is not None:
            scales, axis = array_of(pair.scale), pair.quantize.attributes.get_int("axis", 1)
            along = [-1 if place == axis % steps.ndim else 1 for place in range(steps.ndim)]
            written = steps * scales.reshape(along if scales.size > 1 else 1)
            set_array(pair.exact, written.astype(array_of(pair.exact).dtype))
    return ir.to_proto(changed)


def _require_usable_scales(model: ir.Model) -> None:
    """Refuse scales beyond float16, for which ModelOpt writes zero, the smallest or the largest number instead."""
    for pair in _pairs(model):
        if pair.scale.const_value is not None:
            scales = array_of(pair.scale)
            # Weights may have tiny scales, of channels that are always zero.
            is_limited = scales.dtype == np.float16 and pair.exact.const_value is None
            smallest, largest = (SMALLEST_FLOAT16_SCALE, LARGEST_FLOAT16) if is_limited else (0.0, np.inf)
            if not np.all((smallest < scales.astype(np.float32)) & (scales.astype(np.float32) < largest)):
                raise EnginewrightError(
                    f"a scale of {pair.exact.name} is too small or too large for the unquantized rest: "
                    "set keep.rest: fp32, or keep the node that reads it"
                )


def activations(source: onnx.ModelProto) -> list[str]:
    """Return the names of all that a graph reads and computes."""
    inputs = [tensor.name for tensor in graph_inputs(source.graph)]
    return [*inputs, *(name for node in source.graph.node for name in node.output)]


def quantized_activations(made: onnx.ModelProto, source: onnx.ModelProto) -> list[str]:
    """Return the activations of the source that are rounded in what was made of it."""
    known = activations(source)
    casts = {node.output[0]: node.input[0] for node in made.graph.node if node.op_type == "Cast"}  # in a float16 graph
    read = {node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    # ModelOpt casts to float16 at once what the source casts to float32, such as a mask of integers.
    there = {node.input[0]: node.output[0] for node in source.graph.node if node.op_type == "Cast"}
    before = {casts[name] for name in read - set(known) if name in casts}
    rounded = read | {there.get(name, name) for name in before}
    return [name for name in known if name in rounded]
