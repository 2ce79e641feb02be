"""The options of ONNX Runtime's CUDA provider. What they gain was measured on a GPU: docs/measurements.md."""

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginery.core.params.precisions import Keep
from enginery.engine.runtimes.onnxruntime_cuda import CHANNELS_LAST, FUSED_BIASES, MOST_SHAPES, Executor, convolutions
from enginery.graph.interface import Interface, TensorSpec
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


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        ("y = Conv (input, w)", CHANNELS_LAST | FUSED_BIASES),
        ("y = Conv <group = 3> (input, d)", {}),
        ("p = GlobalAveragePool (input) y = Conv (p, w)", {}),  # as in a squeezed branch
    ],
)
def test_channels_last_are_for_networks_in_which_they_were_right(tmp_path, nodes, options):
    weights = {"w": np.ones((4, 3, 1, 1), np.float32), "d": np.ones((3, 1, 1, 1), np.float32)}
    graph = model_of_text(f"g (float[batch,3,8,8] input) => (float[] y) {{ {nodes} }}", weights)
    save_graph(graph, tmp_path / "model.onnx")
    assert convolutions(tmp_path / "model.onnx") == options


class FakeSession:
    """Takes part in placing, and runs nothing."""

    def io_binding(self):
        return self

    def bind_input(self, *arguments):
        pass

    bind_output = bind_input


def test_each_shape_has_a_session_and_a_few_are_held():
    opened = []
    interface = Interface(
        inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3)),),
        outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 4)),),
    )
    executor = Executor(FakeSession(), lambda: opened.append(batch) or FakeSession(), interface, replays=True)
    for batch in (1, 2, 1, *range(2, MOST_SHAPES + 2), 1, 9, 2):  # 9 takes the place of 1, and then 1 that of 2, ...
        executor.announce({"input": (batch, 3)}, {})
        executor.place({"input": 0, "logits": 0})
    assert opened == [2, *range(3, MOST_SHAPES + 2), 1, 2]
