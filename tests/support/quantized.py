"""What a quantized graph holds."""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import numpy_helper

from enginewright.core.params.precisions import Keep

KEEP_NOTHING = Keep(op_types=(), nodes=())
KEEPS_CONVOLUTIONS = {
    "types": Keep(op_types=("Conv",), nodes=()),
    "names": Keep(op_types=(), nodes=("conv1", "conv2")),
    "pattern": Keep(op_types=(), nodes=("conv.*",)),
}


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def quantized_inputs(model):
    """Return the tensors behind the inputs of each operator whose first input comes out of a DequantizeLinear."""
    makers = {name: node for node in model.graph.node for name in node.output}

    def origin(name):
        dequantize = makers.get(name)
        if dequantize is None or dequantize.op_type != "DequantizeLinear":
            return None
        return makers[dequantize.input[0]].input[0]

    return {node.name: [origin(name) for name in node.input[:2]] for node in model.graph.node if origin(node.input[0])}


# In a process of its own, as ModelOpt changes ONNX Runtime's quantizer where it was imported.
QUANTIZE = """
import sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
source, target, feeds, kind = sys.argv[1:]
class OneBatch(CalibrationDataReader):
    left = [dict(np.load(feeds))]
    def get_next(self):
        return self.left.pop() if self.left else None
quantize_static(
    source, target, OneBatch(), QuantFormat.QDQ, per_channel=True, activation_type=QuantType[kind],
    weight_type=QuantType.QInt8, extra_options={"ActivationSymmetric": kind == "QInt8"},
)
"""


def quantize_with_onnxruntime(source, target, feeds, kind="QUInt8"):
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "feeds.npz"), **feeds)
        command = [sys.executable, "-c", QUANTIZE, source, target, Path(folder, "feeds.npz"), kind]
        subprocess.run(command, check=True, capture_output=True)
