"""int8 and fp8 graphs: ModelOpt places the Q/DQ nodes, the scales are our calibrated ones."""

import re
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import Keep, Rest
from enginery.core.precisions import PRECISIONS
from enginery.graph.onnx_file import load_graph
from enginery.quantization.calibration.cache import read_cache, write_cache
from enginery.quantization.modelopt import errors_as_sentences, one_batch, quiet_modelopt

LARGEST_FLOAT16 = float(np.finfo(np.float16).max)  # ModelOpt writes it for all that is larger
SMALLEST_FLOAT16_SCALE = 2.0**-20  # below, float16 has fewer than five bits left


def nodes_of_tiny_inputs(source: Path, precision: str, amax: Mapping[str, float], rest: Rest) -> list[str]:
    """What must stay in float16 because float16 cannot hold the scale of what it reads, such as ConvNeXt's branches
    before training, which are multiplied by 1e-6."""
    if rest != "fp16":
        return []
    largest = PRECISIONS[precision].largest
    tiny = {name for name, value in amax.items() if value / largest <= SMALLEST_FLOAT16_SCALE}
    return [node.name for node in load_graph(source).graph.node if tiny.intersection(node.input)]


def quantize(
    source: Path,
    precision: str,
    amax: Mapping[str, float],
    keep: Keep,
    rest: Rest,
    sizes: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    """Q/DQ nodes where TensorRT fuses them, which is NVIDIA's to know; the scales are ours, to the bit of `rest`.

    `sizes` are of images that the graph takes, where it leaves them open.
    """
    zeros = one_batch(source, sizes or {})
    tiny = [re.escape(name) for name in nodes_of_tiny_inputs(source, precision, amax, rest)]
    with quiet_modelopt(), tempfile.TemporaryDirectory() as scratch:
        from modelopt.onnx.quantization import quantize as modelopt_quantize

        cache, target = Path(scratch) / "calibration.cache", Path(scratch) / "quantized.onnx"
        write_cache(amax, cache)
        shapes = ",".join(f"{name}:{'x'.join(map(str, array.shape))}" for name, array in zeros.items())
        with errors_as_sentences(precision):
            modelopt_quantize(
                shutil.copyfile(source, Path(scratch) / "given.onnx").as_posix(),  # some graphs it writes back, changed
                quantize_mode=precision,
                # One batch of zeros: with a cache given, the data is run but its ranges are not used.
                calibration_data=zeros,
                calibration_shapes=shapes,
                calibration_cache_path=str(cache),
                calibration_eps=["cpu"],
                op_types_to_exclude=list(keep.op_types),
                nodes_to_exclude=[*keep.nodes, *tiny],
                high_precision_dtype=rest,
                output_path=str(target),
                log_level="ERROR",
            )
        graph = load_graph(target)
        if rest == "fp32":
            _set_float16_scales(graph, source)
        if precision == "fp8":
            _set_fp8_scales(graph, read_cache(cache))
        _require_usable_scales(graph)
        return graph


def _set_float16_scales(model: onnx.ModelProto, source: Path) -> None:
    """Of a file that came in float16: ModelOpt writes a cache's scales in float32, which its tensors do not take."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    if all(tensor.data_type != TensorProto.FLOAT16 for tensor in constants.values()):
        return
    graph = onnx.shape_inference.infer_shapes(load_graph(source)).graph
    types = {value.name: value.type.tensor_type.elem_type for value in (*graph.input, *graph.value_info)}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and types.get(node.input[0]) == TensorProto.FLOAT16:
            scale = numpy_helper.to_array(constants[node.input[1]])
            constants[node.input[1]].CopyFrom(numpy_helper.from_array(scale.astype(np.float16), node.input[1]))


def _set_fp8_scales(model: onnx.ModelProto, amax: Mapping[str, float]) -> None:
    """ModelOpt takes a cache in its fp8 mode but does not read it: the scales are those of its batch of zeros."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    uncast = _uncast(model)
    back = {node.input[0]: node.input[1] for node in model.graph.node if node.op_type == "DequantizeLinear"}
    ranges: dict[str, float] = {}  # by scale: the inputs of a Concat share one
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and uncast(node.input[0]) in amax:
            for scale in (node.input[1], back[node.output[0]]):  # one and the same, but in a float16 graph
                ranges[scale] = max(ranges.get(scale, 0.0), amax[uncast(node.input[0])])
    for name, value in ranges.items():
        dtype = numpy_helper.to_array(constants[name]).dtype
        constants[name].CopyFrom(numpy_helper.from_array(np.array(value / PRECISIONS["fp8"].largest, dtype), name))


def _uncast(model: onnx.ModelProto) -> Callable[[str], str]:
    """The tensor under its name in the graph that was calibrated: a float16 graph casts its input first."""
    casts = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type == "Cast"}
    return lambda name: casts.get(name, name)


def _require_usable_scales(model: onnx.ModelProto) -> None:
    """float16 cannot hold the smallest scales: ModelOpt writes zero, or the smallest that there is, and all is lost."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[1] in constants:
            scales = numpy_helper.to_array(constants[node.input[1]])
            coarse = scales.dtype == np.float16 and node.input[0] not in constants  # of weights, dead channels may be
            smallest, largest = (SMALLEST_FLOAT16_SCALE, LARGEST_FLOAT16) if coarse else (0.0, np.inf)
            if not np.all((smallest < scales.astype(np.float32)) & (scales.astype(np.float32) < largest)):
                raise EngineryError(
                    f"a scale of {node.input[0]} is too small or too large for the unquantized rest: "
                    "set keep.rest: fp32, or keep the node that reads it"
                )


def tensors_to_quantize(source: Path, precision: str, keep: Keep, sizes: Mapping[str, int] | None = None) -> list[str]:
    """The activations that are quantized when each has a range: ModelOpt silently leaves out what a cache lacks."""
    activations = [
        *one_batch(source, sizes or {}),
        *(name for node in load_graph(source).graph.node for name in node.output),
    ]
    complete = quantize(source, precision, dict.fromkeys(activations, 1.0), keep, "fp32", sizes)
    quantized = {node.input[0] for node in complete.graph.node if node.op_type == "QuantizeLinear"}
    return [name for name in activations if name in quantized]
