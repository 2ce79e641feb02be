"""fp16 and bf16 graphs, by ModelOpt's AutoCast."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx

from enginery.core.params.precisions import Keep
from enginery.quantization.modelopt import errors_as_sentences, one_batch, quiet_modelopt


def cast(source: Path, precision: str, keep: Keep, sizes: Mapping[str, int] | None = None) -> onnx.ModelProto:
    """fp16 or bf16 inside, float32 inputs and outputs. Operators that need the range or the precision stay float32.

    `sizes` as for `quantize`: left to itself, AutoCast tries images of one pixel, which few networks survive.
    """
    random = np.random.default_rng(0)
    noise = {
        name: random.uniform(-1, 1, zeros.shape).astype(zeros.dtype)  # of AutoCast's own range; integers become 0
        for name, zeros in one_batch(source, sizes or {}, batch=1).items()
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
