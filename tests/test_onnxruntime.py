"""What ONNX Runtime's CUDA provider is told. That it helps is measured on a GPU: docs/measurements.md."""

from enginery.convert import quantize
from enginery.core.params import Keep
from enginery.graphs import load_graph
from enginery.runtimes.onnxruntime import FAST_CONVOLUTIONS, convolutions


def test_channels_last_and_fused_biases_are_for_graphs_without_quantized_weights(tiny_onnx):
    tensors = ["input", *(name for node in load_graph(tiny_onnx).graph.node for name in node.output)]
    quantized = quantize(
        tiny_onnx, "int8", dict.fromkeys(tensors, 8.0), Keep(op_types=(), nodes=()), rest="fp32"
    ).SerializeToString()
    assert convolutions(str(tiny_onnx)) == convolutions(tiny_onnx.read_bytes()) == FAST_CONVOLUTIONS
    assert convolutions(quantized) == {}
