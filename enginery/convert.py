"""The typed ONNX of one precision: types by AutoCast, Q/DQ nodes by ModelOpt with our own calibrated scales."""

import contextlib
import io
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from enginery.calibration.cache import read_cache, write_cache
from enginery.core.errors import EngineryError
from enginery.core.params import Keep, Rest
from enginery.graphs import graph_inputs, load_graph

LARGEST_INT8 = 127
LARGEST_FP8 = 448  # of E4M3
LARGEST_FLOAT16 = float(np.finfo(np.float16).max)  # ModelOpt writes it for all that is larger
SMALLEST_FLOAT16_SCALE = 2.0**-20  # below, float16 has fewer than five bits left
LARGE_IMAGE = 224  # takes it to come through most networks
CALIBRATION_BATCH = 8  # with 1, ModelOpt takes the classifier's Gemm for a vector product and leaves it in float


def require_known(keep: Keep, model: onnx.ModelProto) -> None:
    """A misspelt operator or node would silently keep nothing."""
    types, names = {node.op_type for node in model.graph.node}, [node.name for node in model.graph.node]
    for op_type in keep.op_types:
        if op_type not in types:
            raise EngineryError(f"keep.op_types: the graph has no {op_type}; it has {', '.join(sorted(types))}")
    for pattern in keep.nodes:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise EngineryError(
                f"keep.nodes: no node of the graph is named '{pattern}', such as {', '.join(names[:3])}"
            )


def cast(source: Path, precision: str, keep: Keep, sizes: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """fp16 or bf16 inside, float32 inputs and outputs. Operators that need the range or the precision stay float32.

    `sizes` as for `quantize`: left to itself, AutoCast tries images of one pixel, which few networks survive.
    """
    random = np.random.default_rng(0)
    noise = {
        name: random.uniform(-1, 1, zeros.shape).astype(zeros.dtype)  # of AutoCast's own range; integers become 0
        for name, zeros in _one_batch(source, sizes or {}, batch=1).items()
    }
    with _quiet_modelopt(), _told(precision):
        from modelopt.onnx.autocast import convert_to_mixed_precision

        converted: onnx.ModelProto = convert_to_mixed_precision(
            str(source),
            low_precision_type=precision,
            keep_io_types=True,
            nodes_to_exclude=list(keep.nodes),
            op_types_to_exclude=list(keep.op_types),
            calibration_data=noise,
        )
    return converted


def nodes_of_tiny_inputs(source: Path, precision: str, amax: Mapping[str, float], rest: Rest) -> list[str]:
    """What must stay in float16 because float16 cannot hold the scale of what it reads, such as ConvNeXt's branches
    before training, which are multiplied by 1e-6."""
    if rest != "fp16":
        return []
    levels = LARGEST_FP8 if precision == "fp8" else LARGEST_INT8
    tiny = {name for name, value in amax.items() if value / levels <= SMALLEST_FLOAT16_SCALE}
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
    zeros = _one_batch(source, sizes or {})
    tiny = [re.escape(name) for name in nodes_of_tiny_inputs(source, precision, amax, rest)]
    with _quiet_modelopt(), tempfile.TemporaryDirectory() as scratch:
        from modelopt.onnx.quantization import quantize as modelopt_quantize

        cache, target = Path(scratch) / "calibration.cache", Path(scratch) / "quantized.onnx"
        write_cache(amax, cache)
        shapes = ",".join(f"{name}:{'x'.join(map(str, array.shape))}" for name, array in zeros.items())
        with _told(precision):
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
        constants[name].CopyFrom(numpy_helper.from_array(np.array(value / LARGEST_FP8, dtype), name))


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
        *_one_batch(source, sizes or {}),
        *(name for node in load_graph(source).graph.node for name in node.output),
    ]
    complete = quantize(source, precision, dict.fromkeys(activations, 1.0), keep, "fp32", sizes)
    quantized = {node.input[0] for node in complete.graph.node if node.op_type == "QuantizeLinear"}
    return [name for name in activations if name in quantized]


def _one_batch(
    source: Path, sizes: Mapping[str, int], batch: int = CALIBRATION_BATCH
) -> dict[str, NDArray[np.generic]]:
    """Zeros for each input; what varies beside the batch is as large as the samples."""
    zeros = {}
    for tensor in graph_inputs(onnx.load(source, load_external_data=False).graph):
        kind = tensor.type.tensor_type
        shape = [
            size.dim_value or (sizes.get(size.dim_param, LARGE_IMAGE) if axis else batch)
            for axis, size in enumerate(kind.shape.dim)
        ]
        zeros[tensor.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return zeros


@contextlib.contextmanager
def _told(precision: str) -> Iterator[None]:
    """What ModelOpt cannot do with a graph is no defect of ours."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        why = " ".join(str(error).split()) or type(error).__name__
        raise EngineryError(
            f"ModelOpt cannot make {precision} of the graph: {why}; keep what it names in high precision, or drop the "
            "precision"
        ) from None


@contextlib.contextmanager
def _quiet_modelopt() -> Iterator[None]:
    """ModelOpt prints its progress and logs each step; its errors are exceptions, which still reach the caller."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            from modelopt.onnx import trt_utils

            # Where TensorRT is installed, it would parse the graph with it to look for plugins, which takes a GPU.
            trt_utils.TRT_PYTHON_AVAILABLE = False
            yield
    finally:
        logging.disable(logging.NOTSET)
