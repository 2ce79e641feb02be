"""The options of ONNX Runtime's CUDA provider. What they gain was measured on a GPU: docs/measurements.md."""

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import Keep
from enginery.engine.runtimes.onnxruntime_cuda import (
    CHANNELS_LAST,
    FUSED_BIASES,
    Executor,
    convolutions,
    rounds_to_int8,
)
from enginery.graph.interface import Interface, TensorSpec
from enginery.graph.onnx_file import load_graph
from enginery.quantization.cast import cast
from enginery.quantization.quantize import quantize
from enginery.quantization.write_blocks import write_blocks

KEEP = Keep(op_types=(), nodes=())


@pytest.mark.parametrize(
    ("precision", "options"), [("fp32", CHANNELS_LAST | FUSED_BIASES), ("fp16", CHANNELS_LAST), ("int8", {})]
)
def test_convolutions_run_as_fast_as_the_provider_can_run_them(tiny_onnx, precision, options):
    graph = load_graph(tiny_onnx)
    if precision == "fp16":
        graph = cast(tiny_onnx, "fp16", KEEP)
    if precision == "int8":
        ranges = dict.fromkeys(["input", *(name for node in graph.graph.node for name in node.output)], 8.0)
        graph = quantize(tiny_onnx, "int8", ranges, KEEP, rest="fp32")
    assert convolutions(graph.graph) == options
    assert rounds_to_int8(graph.graph) == (precision == "int8")


@pytest.mark.parametrize(
    ("nodes", "options"),
    [
        ("y = Conv (input, w)", CHANNELS_LAST | FUSED_BIASES),
        ("y = Conv <group = 3> (input, d)", {}),
        ("p = GlobalAveragePool (input) r = Relu (p) y = Conv (r, w)", {}),  # as in a squeezed branch
        ("c = Conv (input, w) y = GlobalAveragePool (c)", CHANNELS_LAST | FUSED_BIASES),
    ],
)
def test_channels_last_are_for_networks_in_which_they_were_right(nodes, options):
    weights = {"w": np.ones((4, 3, 1, 1), np.float32), "d": np.ones((3, 1, 1, 1), np.float32)}
    graph = model_of_text(f"g (float[batch,3,8,8] input) => (float[] y) {{ {nodes} }}", weights)
    assert convolutions(graph.graph) == options


def test_weights_of_four_bits_stay_for_their_own_products():
    weights = {"w": np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)}
    graph = model_of_text("g (float[batch,64] input) => (float[] y) { [product] y = MatMul (input, w) }", weights)
    assert not rounds_to_int8(write_blocks(graph, "int4", {}).model.graph)


class FakeSession:
    """Takes part in placing, and runs nothing."""

    def io_binding(self):
        return self

    def bind_input(self, *arguments):
        pass

    bind_output = bind_input


INTERFACE = Interface(
    inputs=(TensorSpec(name="input", dtype="float32", shape=("batch", 3)),),
    outputs=(TensorSpec(name="logits", dtype="float32", shape=("batch", 4)),),
)


def place_at(executor, *batches):
    for batch in batches:
        executor.announce({"input": (batch, 3)}, {})
        executor.place({"input": 0, "logits": 0})


@pytest.mark.parametrize(
    ("most", "opened"),
    [
        (3, [2, 3, 4, 2]),  # 4 takes the place of 2, and then 2 that of 3
        (1, [2, 1, 3, 4, 1, 2]),
        (None, []),  # one session serves all
    ],
)
def test_each_shape_has_a_session_and_a_few_are_held(most, opened):
    seen = []

    def another():
        seen.append(executor._shapes["input"][0])
        return FakeSession()

    executor = Executor(FakeSession(), another, INTERFACE, replays=True, most_sessions=most)
    place_at(executor, 1, 2, 1, 3, 3, 4, 1, 2)
    assert seen == opened


def test_a_session_for_which_there_is_no_memory_takes_that_of_the_others():
    held = []

    def another():
        if len(executor._sessions) > 1:
            raise EngineryError("out of memory")
        held.append(len(executor._sessions))
        return FakeSession()

    executor = Executor(FakeSession(), another, INTERFACE, replays=False, most_sessions=8)
    place_at(executor, 1, 2, 3)
    assert held == [1, 0]
