"""Make fp16 and bf16 graphs, by ModelOpt's AutoCast. What calls ModelOpt here quantizes, too."""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from enginewright.core.errors import EnginewrightError, is_out_of_memory
from enginewright.core.params.precisions import Keep
from enginewright.core.text import in_one_line
from enginewright.data.feeds import NO_SAMPLE, Feeds
from enginewright.graph.data_apart import with_bodies
from enginewright.graph.onnx_file import graph_inputs, load_graph
from enginewright.graph.read_interface import shape_inputs
from enginewright.precision.floats import LARGEST_FLOAT16, nodes_adding_scattered, nodes_making_rows

LARGE_IMAGE = 224  # large enough for most networks
CALIBRATION_BATCH = 8  # with 1, ModelOpt takes the classifier's Gemm for a vector product and leaves it in float


def trial_batch(source: Path, sample: Feeds, batch: int = CALIBRATION_BATCH) -> Feeds:
    """Return what ModelOpt can run a graph on: zeros, but the integers of a sample, since a network may look for one of
    its tokens, such as the last, and inputs that hold sizes. Without a sample, images are large."""
    found, graph = {}, onnx.load(source, load_external_data=False).graph
    holding = shape_inputs(graph)
    for tensor in graph_inputs(graph):
        kind = tensor.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [size.dim_value or (LARGE_IMAGE if axis else batch) for axis, size in enumerate(kind.shape.dim)]
        given = sample.get(tensor.name, np.zeros([1, *shape[1:]]))
        values = given if tensor.name in holding else np.resize(given, [shape[0], *given.shape[1:]])
        found[tensor.name] = (values if dtype.kind in "iub" else np.zeros_like(values)).astype(dtype)
    return found


@contextlib.contextmanager
def calling_modelopt(precision: str) -> Iterator[None]:
    """Silence ModelOpt, which prints its progress and logs each step. Turn its exceptions into one sentence, since a
    graph that it cannot convert is no defect of ours."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            from modelopt.onnx import trt_utils

            # With TensorRT installed, ModelOpt parses the graph to look for plugins, which needs a GPU.
            trt_utils.TRT_PYTHON_AVAILABLE = False
            yield
    except Exception as error:  # ONNX Runtime's exceptions, which pass through, share no base class
        if is_out_of_memory(error):
            raise EnginewrightError(
                f"there is not enough memory for ModelOpt to make {precision} of the graph, of which it holds several "
                "copies: take a machine with more, or drop the precision"
            ) from None
        said = in_one_line(error) or type(error).__name__
        cure = "install nvidia-modelopt" if isinstance(error, ImportError) else "keep what it names in high precision"
        why = f"{said}; {cure}, or drop the precision"
        if isinstance(error, NameError) and error.name == "trt":  # what it asks TensorRT, which is off
            why = "it has operators that are not ONNX's own; drop the precision, or give the graph without them"
        raise EnginewrightError(f"ModelOpt cannot make {precision} of the graph: {why}") from None
    finally:
        logging.disable(logging.NOTSET)


NAME_OF_ALL_SIZES = "unk"
LOOKED_AT = 2**21  # bytes of samples: AutoCast holds all that the graph makes of them, which is many times as much
# What exceeds these stays in float32. Other samples than those that were looked at may have larger numbers. In bf16 a
# mask of float32's lowest number would become infinite, and 0 times that is no number: this is rounded down.
LARGEST = {"fp16": LARGEST_FLOAT16 / 8, "bf16": 3.3895e38}


def cast(source: Path, precision: str, keep: Keep, given: Feeds = NO_SAMPLE) -> onnx.ModelProto:
    """Return the graph in fp16 or bf16, but in float32 at its ends and where an operator needs the range or precision.

    AutoCast runs the graph to find where it needs the range: on the samples given, or else on noise.
    """
    random, count = np.random.default_rng(0), max(map(len, given.values()), default=1)
    in_memory = LOOKED_AT * count // max(1, sum(array.nbytes for array in given.values()))
    tried = dict(trial_batch(source, given, batch=max(1, min(count, in_memory))))
    for name, array in tried.items():
        if array.dtype.kind not in "iub":
            is_there = name in given and given[name].any()  # an empty set has only zeros
            shown = np.resize(given[name], array.shape) if is_there else random.uniform(-1, 1, array.shape)
            tried[name] = shown.astype(array.dtype)
    graph = load_graph(source)
    exact = keep.naming((*nodes_making_rows(graph), *(node.name for node in nodes_adding_scattered(graph))))
    kept = {"nodes_to_exclude": exact.whole_names, "op_types_to_exclude": list(keep.op_types)}
    limits = {"data_max": LARGEST[precision], "init_max": max(LARGEST[precision], LARGEST_FLOAT16)}
    with calling_modelopt(precision):
        from modelopt.onnx.autocast import convert_to_mixed_precision

        converted: onnx.ModelProto = convert_to_mixed_precision(
            str(source), low_precision_type=precision, keep_io_types=True, calibration_data=tried, **kept, **limits
        )
    forget_unknown_sizes(converted)
    return converted


def forget_unknown_sizes(model: onnx.ModelProto) -> None:
    """Leave a size open where AutoCast has written its one name for all sizes. ONNX Runtime takes sizes of one name for
    equal, and would give a tensor the memory of a smaller one."""
    for graph in with_bodies(model.graph):
        for value in graph.value_info:
            for size in value.type.tensor_type.shape.dim:
                if size.dim_param == NAME_OF_ALL_SIZES:
                    size.ClearField("dim_param")
