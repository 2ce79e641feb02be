"""Call ModelOpt: the batch that it runs, its errors and its output. Casting and quantizing share this."""

import contextlib
import io
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx

from enginery.core.errors import EngineryError, is_out_of_memory
from enginery.core.text import in_one_line
from enginery.data.feeds import Feeds
from enginery.graph.onnx_file import graph_inputs
from enginery.graph.shape_inputs import shape_inputs

LARGE_IMAGE = 224  # large enough for most networks
CALIBRATION_BATCH = 8  # with 1, ModelOpt takes the classifier's Gemm for a vector product and leaves it in float


def batch_of_zeros(source: Path, sizes: Mapping[str, int], batch: int = CALIBRATION_BATCH) -> Feeds:
    """Return zeros for each input, but the values of the samples for one that holds sizes. `sizes` are those of the
    samples, for axes that vary beside the batch."""
    zeros, graph = {}, onnx.load(source, load_external_data=False).graph
    holding = shape_inputs(graph)
    for tensor in graph_inputs(graph):
        kind = tensor.type.tensor_type
        axes = enumerate(kind.shape.dim)
        shape = [size.dim_value or (sizes.get(size.dim_param, LARGE_IMAGE) if axis else batch) for axis, size in axes]
        zeros[tensor.name] = np.zeros(shape, onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if tensor.name in holding:
            zeros[tensor.name].flat[:] = [sizes[f"{tensor.name}[{n}]"] for n in range(zeros[tensor.name].size)]
    return zeros


def named_sizes(model: onnx.ModelProto, feeds: Feeds) -> dict[str, int]:
    """Return the size that samples have at each axis that varies beside the batch, by its name, and the values of each
    input that holds sizes, by its name and their places."""
    values = {
        f"{name}[{n}]": int(size) for name in shape_inputs(model.graph) for n, size in enumerate(feeds[name].flat)
    }
    return values | {
        size.dim_param: feeds[tensor.name].shape[number]
        for tensor in graph_inputs(model.graph)
        for number, size in enumerate(tensor.type.tensor_type.shape.dim)
        if number and size.dim_param
    }


@contextlib.contextmanager
def errors_as_sentences(precision: str) -> Iterator[None]:
    """Turn ModelOpt's exceptions into one sentence, since a graph that it cannot convert is no defect of ours."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's exceptions, which pass through, share no base class
        if is_out_of_memory(error):
            raise EngineryError(
                f"there is not enough memory for ModelOpt to make {precision} of the graph, of which it holds several "
                "copies: take a machine with more, or drop the precision"
            ) from None
        why = in_one_line(error) or type(error).__name__
        raise EngineryError(
            f"ModelOpt cannot make {precision} of the graph: {why}; keep what it names in high precision, or drop the "
            "precision"
        ) from None


@contextlib.contextmanager
def quiet_modelopt() -> Iterator[None]:
    """Silence ModelOpt, which prints its progress and logs each step; its exceptions still reach the caller."""
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            from modelopt.onnx import trt_utils

            # With TensorRT installed, ModelOpt parses the graph to look for plugins, which needs a GPU.
            trt_utils.TRT_PYTHON_AVAILABLE = False
            yield
    finally:
        logging.disable(logging.NOTSET)
