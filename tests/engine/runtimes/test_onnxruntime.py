"""What ONNX Runtime's CUDA provider is given. What that gains was measured on a GPU: docs/measurements.md."""

import shutil

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import Keep
from enginery.engine.runtimes.onnxruntime_cuda import Executor, rounds_to_int8
from enginery.engine.runtimes.onnxruntime_layout import (
    CALLS,
    CHANNELS_FIRST,
    CHANNELS_LAST,
    FUSED_BIASES,
    WARM_UP,
    Trial,
    fastest_layout,
    layout_of,
    lays_out,
    timed,
    write_layout,
)
from enginery.graph.interface import Interface, TensorSpec
from enginery.graph.onnx_file import load_graph
from enginery.graph.read_interface import read_blueprint
from enginery.quantization.cast import cast
from enginery.quantization.quantize import quantize
from enginery.quantization.write_blocks import write_blocks

KEEP = Keep(op_types=(), nodes=())


@pytest.mark.parametrize(("precision", "laid_out"), [("fp32", True), ("fp16", True), ("int8", False)])
def test_only_weights_in_floats_are_laid_out(tiny_onnx, precision, laid_out):
    graph = load_graph(tiny_onnx)
    if precision == "fp16":
        graph = cast(tiny_onnx, "fp16", KEEP)
    if precision == "int8":
        ranges = dict.fromkeys(["input", *(name for node in graph.graph.node for name in node.output)], 8.0)
        graph = quantize(tiny_onnx, "int8", ranges, KEEP, rest="fp32")
    assert lays_out(graph.graph) == laid_out
    assert rounds_to_int8(graph.graph) == (precision == "int8")


def test_there_is_no_layout_without_images():
    assert not lays_out(model_of_text("g (float[batch,4] input) => (float[] y) { y = Relu (input) }", {}).graph)


RIGHT = {"logits": np.ones((2, 4), np.float32)}


@pytest.mark.parametrize(
    ("last", "fused", "chosen"),
    [
        ((0.9, RIGHT), (0.8, RIGHT), FUSED_BIASES),
        ((0.9, RIGHT), (1.2, RIGHT), CHANNELS_LAST),
        ((0.98, RIGHT), (0.99, RIGHT), CHANNELS_FIRST),  # which is within the noise
        ((0.9, RIGHT), (0.5, {"logits": RIGHT["logits"] * 1.2}), CHANNELS_LAST),  # wrong
        ((0.5, {"logits": RIGHT["logits"] * np.nan}), None, CHANNELS_FIRST),  # None: refused
    ],
)
def test_the_fastest_layout_that_is_right_is_chosen(last, fused, chosen):
    trials = {1: last, 2: fused}

    def try_out(layout):
        return Trial(*((1.0, RIGHT) if not layout else trials[len(layout)]))

    assert fastest_layout(try_out) == chosen


def test_an_engine_says_how_it_must_be_opened(tiny_onnx, tmp_path):
    engine = shutil.copy(tiny_onnx, tmp_path / "engine.onnx")
    assert layout_of(load_graph(engine)) == CHANNELS_FIRST
    write_layout(engine, FUSED_BIASES)
    assert layout_of(load_graph(engine)) == FUSED_BIASES
    assert load_graph(engine).graph == load_graph(tiny_onnx).graph


def test_a_layout_is_timed_at_the_size_that_the_engine_is_for(tiny_onnx, build):
    asked = []

    class Session:
        def run(self, feeds):
            asked.append({name: array.shape for name, array in feeds.items()})
            return RIGHT

        def bind(self, feeds):
            times = iter([9.0] * WARM_UP + [1.0, 2.0, 6.0] * CALLS)
            return lambda: next(times)

    assert timed(Session(), read_blueprint(tiny_onnx, build)) == (2.0, RIGHT)
    assert asked == [{"input": (build.profile.batch.opt, 3, 8, 8)}]


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
