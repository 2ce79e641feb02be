"""Call ModelOpt: the batch that it runs, its errors and its output. Casting and quantizing share this."""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

from enginewright.core.errors import EnginewrightError, is_out_of_memory
from enginewright.core.text import in_one_line
from enginewright.data.feeds import Feeds
from enginewright.graph.onnx_file import graph_inputs
from enginewright.graph.shape_inputs import shape_inputs

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
        values = given if tensor.name in holding else np.repeat(given[:1], shape[0], axis=0)
        found[tensor.name] = (values if dtype.kind in "iub" else np.zeros_like(values)).astype(dtype)
    return found


@contextlib.contextmanager
def errors_as_sentences(precision: str) -> Iterator[None]:
    """Turn ModelOpt's exceptions into one sentence, since a graph that it cannot convert is no defect of ours."""
    try:
        yield
    except Exception as error:  # ONNX Runtime's exceptions, which pass through, share no base class
        if is_out_of_memory(error):
            raise EnginewrightError(
                f"there is not enough memory for ModelOpt to make {precision} of the graph, of which it holds several "
                "copies: take a machine with more, or drop the precision"
            ) from None
        if isinstance(error, NameError) and error.name == "trt":  # what it asks TensorRT, which is off
            raise EnginewrightError(
                f"ModelOpt cannot make {precision} of the graph: it has operators that are not ONNX's own; drop the "
                "precision, or give the graph without them"
            ) from None
        why = in_one_line(error) or type(error).__name__
        raise EnginewrightError(
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
