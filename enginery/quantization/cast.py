"""Make fp16 and bf16 graphs, by ModelOpt's AutoCast."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from enginery.core.params.precisions import Keep
from enginery.quantization.modelopt import batch_of_zeros, errors_as_sentences, quiet_modelopt


def cast(source: Path, precision: str, keep: Keep, sizes: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """Return the graph in fp16 or bf16, with inputs and outputs in float32.

    Operators that need float32's range or precision keep it. `sizes` are those of `batch_of_zeros`: without them,
    AutoCast would try images of one pixel, which few networks accept.
    """
    random = np.random.default_rng(0)
    noise = {
        name: random.uniform(-1, 1, zeros.shape).astype(zeros.dtype)  # AutoCast's own range; integers become 0
        for name, zeros in batch_of_zeros(source, sizes or {}, batch=1).items()
    }
    with quiet_modelopt(), errors_as_sentences(precision):
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
