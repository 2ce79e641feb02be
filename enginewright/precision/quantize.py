"""Make int8 and fp8 graphs for TensorRT: ModelOpt places Q/DQ nodes, which `fusion` mends, and the scales are ours."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import scratch_folder
from enginewright.core.params.precisions import Keep, Rest
from enginewright.data.feeds import NO_SAMPLE, Feeds
from enginewright.graph.data_apart import in_memory
from enginewright.graph.files import data_of
from enginewright.graph.onnx_file import graph_inputs, load_graph, save_graph
from enginewright.graph.shapes import shapes_of
from enginewright.precision.calibration.cache import read_cache, write_cache
from enginewright.precision.cast import errors_as_sentences, kept_nodes, quiet_modelopt, trial_batch
from enginewright.precision.floats import LARGEST_FLOAT16, SMALLEST_FLOAT16_SCALE, nodes_adding_scattered
from enginewright.precision.fusion import mend_fusions
from enginewright.precision.stand_ins import Replaced, put_back, with_stand_ins
from enginewright.precision.write_int8 import Rounded

# TensorRT 10.6 writes the sums of an fp8 Conv as float16 before it multiplies them by the scales, if an Add follows. On
# an H200, ResNet-18's were infinite there. Half of the range leaves room for more than was calibrated.
LARGEST_FP8_SUM = LARGEST_FLOAT16 / 2

Constants = dict[str, TensorProto]


def quantize(
    source: Path,
    precision: str,
    amax: Mapping[str, float],
    keep: Keep,
    rest: Rest,
    *,
    sample: Feeds = NO_SAMPLE,
    largest_weight: int = PRECISIONS["int8"].largest,
    rounded: Rounded | None = None,
) -> onnx.ModelProto:
    """Return the graph with Q/DQ nodes, which ModelOpt places where TensorRT fuses them, and with our scales.

    The scales and all unquantized nodes have the type `rest`. `sample` is one that the graph accepts. `largest_weight`
    is for int8 alone, as are weights that are `rounded` already. A tensor without a range stays as it is.
    """
    tried = trial_batch(source, sample)
    with quiet_modelopt(), scratch_folder() as scratch:
        cache = scratch / "calibration.cache"
        write_cache(amax, cache)
        made, replaced = _place_by_modelopt(source, precision, cache, keep, rest, tried)
        constants = {tensor.name: tensor for tensor in made.graph.initializer}
        if rest == "fp32":
            _set_float16_scales(made.graph, constants, source)
        if precision == "fp8":
            _set_fp8_scales(made.graph, constants, read_cache(cache))
        if precision == "int8" and largest_weight < PRECISIONS["int8"].largest:
            _limit_weights(made.graph, constants, largest_weight)
        _require_usable_scales(made.graph, constants)
    if replaced:
        made = put_back(made, replaced)
    if precision == "fp8":
        _set_fp8_weight_scales(made.graph, {tensor.name: tensor for tensor in made.graph.initializer}, amax)
    made = mend_fusions(made)
    if rounded:  # weights that are still in int8
        _set_rounded(made.graph, rounded)
    return made


def _place_by_modelopt(
    source: Path, precision: str, cache: Path, keep: Keep, rest: Rest, tried: Feeds
) -> tuple[onnx.ModelProto, Replaced]:
    """Return the graph, and the large weights that are to be put back."""
    from modelopt.onnx.quantization import quantize as modelopt_quantize

    with scratch_folder() as scratch:
        given, target = scratch / "model.onnx", scratch / "quantized.onnx"
        replaced = _save_lighter(source, keep, given)
        shapes = ",".join(f"{name}:{'x'.join(map(str, array.shape))}" for name, array in tried.items())
        with errors_as_sentences(precision):
            modelopt_quantize(
                str(given),
                quantize_mode=precision,
                calibration_data=tried,  # ModelOpt runs it, but takes the ranges from the cache
                calibration_shapes=shapes,
                calibration_cache_path=str(cache),
                calibration_eps=["cpu"],
                op_types_to_exclude=list(keep.op_types),
                nodes_to_exclude=list(keep.nodes),
                high_precision_dtype=rest,
                op_types_to_exclude_fp16=sorted({node.op_type for node in nodes_adding_scattered(load_graph(given))}),
                output_path=str(target),
                use_external_data_format=data_of(given).exists(),
                enable_shared_constants_duplication=not replaced,
                log_level="ERROR",
            )
        return in_memory(load_graph(target)), replaced  # the file does not stay


def _save_lighter(source: Path, keep: Keep, target: Path) -> Replaced:
    """Save the graph for ModelOpt, which changes the file of some, with few of its large weights."""
    model = load_graph(source)
    light, replaced = with_stand_ins(model, kept_nodes(keep, model))
    save_graph(light, target)
    return replaced


def _set_float16_scales(graph: onnx.GraphProto, constants: Constants, source: Path) -> None:
    """Write float16 scales for float16 tensors of the source, whose scales ModelOpt writes in float32 from a cache."""
    if all(tensor.data_type != TensorProto.FLOAT16 for tensor in constants.values()):
        return
    given = shapes_of(load_graph(source)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*given.input, *given.value_info)}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and types.get(node.input[0]) == TensorProto.FLOAT16:
            scale = numpy_helper.to_array(constants[node.input[1]])
            constants[node.input[1]].CopyFrom(numpy_helper.from_array(scale.astype(np.float16), node.input[1]))


def _set_fp8_scales(graph: onnx.GraphProto, constants: Constants, amax: Mapping[str, float]) -> None:
    """Write the calibrated scales, since ModelOpt's fp8 mode ignores the cache and takes those of its zeros."""
    # A float16 graph casts its input, and the ranges are those of the tensor before the cast.
    casts = {node.output[0]: node.input[0] for node in graph.node if node.op_type == "Cast"}
    back = {node.input[0]: node.input[1] for node in graph.node if node.op_type == "DequantizeLinear"}
    ranges: dict[str, float] = {}  # by scale, since the inputs of a Concat share one
    for node in [node for node in graph.node if node.op_type == "QuantizeLinear"]:
        name = node.input[0] if node.input[0] in amax else casts.get(node.input[0], "")
        if name in amax:
            for scale in (node.input[1], back[node.output[0]]):  # two constants in a float16 graph, otherwise one
                ranges[scale] = max(ranges.get(scale, 0.0), amax[name])
    for name, value in ranges.items():
        dtype = numpy_helper.to_array(constants[name]).dtype
        constants[name].CopyFrom(numpy_helper.from_array(np.array(value / PRECISIONS["fp8"].largest, dtype), name))


def _set_fp8_weight_scales(graph: onnx.GraphProto, constants: Constants, amax: Mapping[str, float]) -> None:
    """Let each channel of weights use all of fp8's range, where ModelOpt's use 36 of 448, or what keeps the sums of a
    product within float16."""
    makers = {name: node for node in graph.node for name in node.output}
    for product in graph.node:
        rounded = [makers[name] for name in product.input[:2] if name in makers]
        if [node.op_type for node in rounded] != ["DequantizeLinear"] * 2:
            continue
        activation, back = rounded
        there = makers[back.input[0]]
        if there.input[0] not in constants:
            continue
        weights, axis = numpy_helper.to_array(constants[there.input[0]]).astype(np.float64), _axis_of(there)
        scales = numpy_helper.to_array(constants[there.input[1]])
        others = tuple(each for each in range(weights.ndim) if scales.size == 1 or each != axis % weights.ndim)
        needed = np.abs(weights).max(axis=others) / PRECISIONS["fp8"].largest
        step = float(numpy_helper.to_array(constants[activation.input[1]]))
        largest = amax.get(product.output[0], 0.0) + _largest_bias(product, constants)
        written = np.maximum(needed, max(largest / (step * LARGEST_FP8_SUM), SMALLEST_FLOAT16_SCALE))
        for name in (there.input[1], back.input[1]):
            constants[name].CopyFrom(numpy_helper.from_array(written.reshape(scales.shape).astype(scales.dtype), name))


def _axis_of(node: onnx.NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 1)


def _largest_bias(product: onnx.NodeProto, constants: Constants) -> float:
    bias = constants.get(product.input[2]) if len(product.input) > 2 else None
    return float(np.abs(numpy_helper.to_array(bias)).max()) if bias is not None else 0.0


def _limit_weights(graph: onnx.GraphProto, constants: Constants, largest: int) -> None:
    """Write larger scales, with which no quantized weight is larger than that."""
    back = {node.input[0]: node.input[1] for node in graph.node if node.op_type == "DequantizeLinear"}
    quantizing = [node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] in constants]
    for name in {scale for node in quantizing for scale in (node.input[1], back[node.output[0]])}:
        scales = numpy_helper.to_array(constants[name])
        wider = scales * scales.dtype.type(PRECISIONS["int8"].largest / largest)
        constants[name].CopyFrom(numpy_helper.from_array(wider, name))


def _set_rounded(graph: onnx.GraphProto, rounded: Rounded) -> None:
    """Write multiples of the scales in place of weights, so that rounding takes these bytes."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in rounded and node.input[1] in constants:
            weights, axis = constants[node.input[0]], _axis_of(node)
            scales = numpy_helper.to_array(constants[node.input[1]])
            along = [-1 if place == axis % len(weights.dims) else 1 for place in range(len(weights.dims))]
            exact = numpy_helper.to_array(weights)
            written = rounded[node.input[0]] * scales.reshape(along if scales.size > 1 else 1)
            weights.CopyFrom(numpy_helper.from_array(written.astype(exact.dtype), weights.name))


def _require_usable_scales(graph: onnx.GraphProto, constants: Constants) -> None:
    """Refuse scales beyond float16, for which ModelOpt writes zero, the smallest or the largest number instead."""
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] in constants:
            scales = numpy_helper.to_array(constants[node.input[1]])
            # Weights may have tiny scales, of channels that are always zero.
            is_limited = scales.dtype == np.float16 and node.input[0] not in constants
            smallest, largest = (SMALLEST_FLOAT16_SCALE, LARGEST_FLOAT16) if is_limited else (0.0, np.inf)
            if not np.all((smallest < scales.astype(np.float32)) & (scales.astype(np.float32) < largest)):
                raise EnginewrightError(
                    f"a scale of {node.input[0]} is too small or too large for the unquantized rest: "
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
