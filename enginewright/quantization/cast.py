"""Make fp16 and bf16 graphs, by ModelOpt's AutoCast."""

import re
from pathlib import Path

import numpy as np
import onnx

from enginewright.core.params.precisions import Keep
from enginewright.data.feeds import NO_SAMPLE, Feeds
from enginewright.graph.data_apart import with_bodies
from enginewright.graph.onnx_file import load_graph
from enginewright.quantization.modelopt import errors_as_sentences, quiet_modelopt, trial_batch
from enginewright.quantization.structure import nodes_adding_scattered, nodes_making_rows

NAME_OF_ALL_SIZES = "unk"
BF16_LARGEST = 3.3895e38  # rounded down, and less than float32's
# AutoCast leaves what exceeds this in float32. Its own limits, such as 512 for activations, are for fp16. In bf16 a
# mask of float32's lowest number would become infinite, and 0 times that is no number.
LARGEST = {"bf16": {"data_max": BF16_LARGEST, "init_max": BF16_LARGEST}}


def cast(source: Path, precision: str, keep: Keep, sample: Feeds = NO_SAMPLE) -> onnx.ModelProto:
    """Return the graph in fp16 or bf16, but in float32 at its ends and where an operator needs the range or precision.

    AutoCast runs the graph to find where it needs the range: on noise, and the integers of the sample. Left to itself,
    it tries images of one pixel, which few networks accept.
    """
    random = np.random.default_rng(0)
    tried = {
        name: array if array.dtype.kind in "iub" else random.uniform(-1, 1, array.shape).astype(array.dtype)
        for name, array in trial_batch(source, sample, batch=1).items()
    }
    graph = load_graph(source)
    scattered = (node.name for node in nodes_adding_scattered(graph))
    exact = map(re.escape, (*nodes_making_rows(graph), *scattered))
    kept = {"nodes_to_exclude": [*keep.nodes, *exact], "op_types_to_exclude": list(keep.op_types)}
    limits = LARGEST.get(precision, {})
    with quiet_modelopt(), errors_as_sentences(precision):
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
