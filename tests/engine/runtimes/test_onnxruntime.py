"""Check what ONNX Runtime's CUDA provider is told. docs/explanation/measuring.md says what for."""

import shutil
from dataclasses import replace
from typing import ClassVar

import numpy as np
import onnxruntime
import pytest
from support.pass_checks import model_of_text

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import Keep
from enginewright.engine.runtimes import onnxruntime as module
from enginewright.engine.runtimes.onnxruntime import (
    CHANNELS_FIRST,
    CHANNELS_LAST,
    LAST_WITH_FUSED_BIASES,
    TRIAL_CALLS,
    TRIAL_WARM_UP,
    LayoutTrial,
    ONNXRuntimeExecutor,
    fastest_layout,
    has_choice,
    layout_of,
    require_known_sizes,
    rounds_to_int8,
    timed,
    write_layout,
)
from enginewright.graph.interface import Blueprint, Interface, TensorSpec
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.precision.blocks import write_blocks
from enginewright.precision.cast import cast
from enginewright.precision.quantize import quantize

KEEP = Keep(op_types=(), nodes=())


@pytest.mark.parametrize(("precision", "laid_out"), [("fp32", True), ("fp16", True), ("int8", False)])
def test_only_weights_in_floats_are_laid_out(tiny_onnx, precision, laid_out):
    graph = load_graph(tiny_onnx)
    if precision == "fp16":
        graph = cast(tiny_onnx, "fp16", KEEP)
    if precision == "int8":
        ranges = dict.fromkeys(["input", *(name for node in graph.graph.node for name in node.output)], 8.0)
        graph = quantize(tiny_onnx, "int8", ranges, KEEP, rest="fp32")
    assert has_choice(graph.graph) == laid_out
    assert rounds_to_int8(graph.graph) == (precision == "int8")


def test_there_is_no_layout_without_images():
    assert not has_choice(model_of_text("g (float[batch,4] input) => (float[] y) { y = Relu (input) }", {}).graph)


RIGHT = {"logits": np.array([[1, 2, 3], [30, 20, 10]], np.float32)}
WRONG_IN_ONE = {"logits": np.array([[2, 1, 3], [30, 20, 10]], np.float32)}  # beside answers that are far larger
NAN = {"logits": np.full((2, 3), np.nan, np.float32)}


@pytest.mark.parametrize(
    ("last", "fused", "chosen"),
    [
        ((0.9, RIGHT), (0.8, RIGHT), LAST_WITH_FUSED_BIASES),
        ((0.9, RIGHT), (1.2, RIGHT), CHANNELS_LAST),
        ((0.98, RIGHT), (0.99, RIGHT), CHANNELS_FIRST),  # which is within the noise
        ((0.9, RIGHT), (0.5, WRONG_IN_ONE), CHANNELS_LAST),
        ((0.5, NAN), None, CHANNELS_FIRST),  # None: refused
    ],
)
def test_the_fastest_layout_that_is_right_is_chosen(last, fused, chosen, capsys):
    trials = [(1.0, RIGHT), last, fused]

    def try_out(layout):
        if (trial := trials[len(layout)]) is None:
            raise EnginewrightError("it refuses")
        return LayoutTrial(*trial)

    assert fastest_layout(try_out) == chosen
    assert ("fuse_conv_bias': '1'}: it refuses" in capsys.readouterr().err) == (fused is None)


def test_channels_first_stay_where_they_cannot_be_tried(capsys):
    def try_out(layout):
        raise EnginewrightError("a node waits while it is captured")

    assert fastest_layout(try_out) == CHANNELS_FIRST
    assert capsys.readouterr().err.endswith("tried with channels first: a node waits while it is captured\n")


COLUMN = np.array([[5.0], [7.0], [6.0]], np.float16)


@pytest.mark.parametrize("values", [RIGHT["logits"], COLUMN, COLUMN[:, 0], np.arange(24.0).reshape(2, 3, 4)])
def test_answers_of_any_shape_agree_with_themselves_alone(values):
    answers, other = {"out": values}, {"out": values * 3}
    assert fastest_layout(lambda layout: LayoutTrial(1 / (1 + len(layout)), answers)) == LAST_WITH_FUSED_BIASES
    assert (
        fastest_layout(lambda layout: LayoutTrial(1 / (1 + len(layout)), other if layout else answers))
        == CHANNELS_FIRST
    )


def test_an_engine_says_how_it_must_be_opened(tiny_onnx, tmp_path):
    engine = shutil.copy(tiny_onnx, tmp_path / "engine.onnx")
    assert layout_of(load_graph(engine)) == CHANNELS_FIRST
    for layout in (LAST_WITH_FUSED_BIASES, CHANNELS_LAST):
        write_layout(engine, layout)
        assert layout_of(load_graph(engine)) == layout
    write_layout(engine, {"gpu_external_alloc": "1"})
    assert layout_of(load_graph(engine)) == CHANNELS_FIRST
    assert load_graph(engine).graph == load_graph(tiny_onnx).graph


class TimedSession:
    """Takes long while it is warmed up, and says what it was asked."""

    asked: ClassVar[list] = []

    def run(self, feeds):
        self.asked.append(feeds)
        return RIGHT

    def bind(self, feeds):
        times = iter([9.0] * TRIAL_WARM_UP + [1.0, 2.0, 6.0] * TRIAL_CALLS)
        return lambda: next(times)

    def close(self):
        pass


@pytest.mark.parametrize("given", [1, 0])
def test_a_layout_is_timed_at_the_size_that_the_engine_is_for(tiny_onnx, build, given):
    example = {"input": np.full((given, 3, 8, 8), 5.0)} if given else {}
    assert timed(TimedSession(), replace(read_blueprint(tiny_onnx, build), example=example)) == (2.0, RIGHT)
    asked = TimedSession.asked.pop()["input"]
    assert asked.shape == (build.profile.batch.opt, 3, 8, 8)
    assert (asked == 5).all() == bool(given)


@pytest.fixture
def told(monkeypatch):
    """Let the CPU stand in for the provider, and return the settings of each session that was opened."""
    seen = []

    def cuda_session(model, options, settings, stream=None, replays=False):
        seen.append(settings)
        return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(module, "device", lambda: "cuda")
    monkeypatch.setattr(module, "cuda_session", cuda_session)
    return seen


def test_a_layout_is_told_when_a_graph_is_optimized_and_when_it_is_opened(told, tiny_onnx, build, tmp_path):
    module.optimize(tiny_onnx, tmp_path, build, CHANNELS_LAST)
    engine = tmp_path / module.GRAPH
    module.open_session(engine, module.options_for(threads=1), build)
    assert told == [{"use_tf32": "1", **CHANNELS_LAST}] * 2


def test_a_trial_is_made_of_the_layout_that_is_asked_for(told, tiny_onnx, build, monkeypatch):
    monkeypatch.setattr(module, "open_on_gpu", lambda model, *_, **__: TimedSession())
    seconds, answers = module.try_out(tiny_onnx, read_blueprint(tiny_onnx, build), CHANNELS_LAST)
    assert (seconds, answers.keys()) == (2.0, RIGHT.keys())
    assert told == [{"use_tf32": "1", **CHANNELS_LAST}]


def test_a_process_that_fails_is_a_sentence(tiny_onnx, build):
    """Let the process look for a GPU, which is not there."""
    with pytest.raises(EnginewrightError, match=r"CUDA|GPU|driver"):
        module.try_in_own_process(tiny_onnx, read_blueprint(tiny_onnx, build), CHANNELS_FIRST)


def test_an_input_that_holds_sizes_is_refused(build):
    sizes = TensorSpec(name="sizes", dtype="int64", shape=(2,), values=("height", "width"))
    with pytest.raises(EnginewrightError, match="takes no sizes, as in input sizes: take TensorRT"):
        require_known_sizes(Blueprint(Interface(inputs=(sizes,), outputs=()), build))


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

    executor = ONNXRuntimeExecutor(FakeSession(), another, INTERFACE, replays=True, most_sessions=most)
    place_at(executor, 1, 2, 1, 3, 3, 4, 1, 2)
    assert seen == opened


def test_a_session_for_which_there_is_no_memory_takes_that_of_the_others():
    held = []

    def another():
        if len(executor._sessions) > 1:
            raise EnginewrightError("out of memory")
        held.append(len(executor._sessions))
        return FakeSession()

    executor = ONNXRuntimeExecutor(FakeSession(), another, INTERFACE, replays=False, most_sessions=8)
    place_at(executor, 1, 2, 3)
    assert held == [1, 0]
