"""The options of ONNX Runtime's CUDA provider. What they gain was measured on a GPU: docs/measurements.md."""

import pytest

from enginery.core.params.precisions import Keep
from enginery.engine.runtimes.onnxruntime import CHANNELS_LAST, FUSED_BIASES, convolutions
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.quantization.cast import cast
from enginery.quantization.quantize import quantize

KEEP = Keep(op_types=(), nodes=())


@pytest.mark.parametrize(
    ("precision", "options"), [("fp32", CHANNELS_LAST | FUSED_BIASES), ("fp16", CHANNELS_LAST), ("int8", {})]
)
def test_convolutions_run_as_fast_as_the_provider_can_run_them(tiny_onnx, tmp_path, precision, options):
    graph = load_graph(tiny_onnx)
    if precision == "fp16":
        graph = cast(tiny_onnx, "fp16", KEEP)
    if precision == "int8":
        ranges = dict.fromkeys(["input", *(name for node in graph.graph.node for name in node.output)], 8.0)
        graph = quantize(tiny_onnx, "int8", ranges, KEEP, rest="fp32")
    save_graph(graph, tmp_path / "model.onnx")
    assert convolutions(tmp_path / "model.onnx") == options
