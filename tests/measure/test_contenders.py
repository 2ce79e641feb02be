import gc
import inspect
import re
import sys
import weakref
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import torch
from support.pass_checks import model_of_text
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.engine.record import read_engine
from enginewright.measure.contenders import _captured, pytorch_contender
from enginewright.pipeline.speed import open_baseline, require_possible

IMAGES = {"input": np.random.default_rng(0).normal(0, 1, (2, 3, 8, 8)).astype(np.float32)}
calls = []  # outside of the model, because a contender runs a copy of it


class RecordingModel(nn.Module):
    """A model that records its input, its weights and the inference mode of each call."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, images):
        calls.append((images, self.conv.weight, torch.is_inference_mode_enabled()))
        return self.conv(images).flatten(1)


@pytest.fixture
def call_baseline():
    """Call the recording model as a baseline, and return what it recorded."""

    def call(baseline):
        calls.clear()
        pytorch_contender(RecordingModel().eval(), baseline, "cpu", True, IMAGES)()
        return calls[-1]

    yield call
    calls.clear()


def is_channels_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


@pytest.mark.parametrize(
    ("baseline", "dtype", "channels_last"),
    [
        ("eager", torch.float32, False),
        ("channels_last", torch.float32, True),
        ("bf16", torch.bfloat16, False),
        ("eager+channels_last+fp16", torch.float16, True),
    ],
)
def test_a_baseline_has_the_layout_and_type_of_its_name(call_baseline, baseline, dtype, channels_last):
    images, weights, inference = call_baseline(baseline)
    assert images.dtype == weights.dtype == dtype
    assert is_channels_last(images) == is_channels_last(weights) == channels_last
    assert torch.allclose(images.float(), torch.from_numpy(IMAGES["input"]), atol=0.05)
    assert inference


def test_a_baseline_does_not_change_the_model_itself():
    model = RecordingModel()
    pytorch_contender(model, "channels_last+bf16", "cpu", True, IMAGES)
    assert model.conv.weight.dtype == torch.float32
    assert model.conv.weight.is_contiguous()


@pytest.mark.parametrize("baseline", ["compile", "max_autotune"])
def test_a_compiled_baseline_is_compiled_once(baseline):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 4), nn.ReLU()).eval()
    contender = pytorch_contender(model, baseline, "cpu", True, IMAGES)
    contender()
    contender()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_each_of_many_batch_sizes_is_compiled():
    """PyTorch would run the ninth and later ones as eager, under the name of the compiled baseline."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Flatten().eval()
    for batch in range(1, 11):
        pytorch_contender(model, "compile", "cpu", True, {"input": np.zeros((batch, 3), np.float32)})()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 10


def test_pytorch_still_leaves_the_ninth_shape_of_a_code_object_uncompiled():
    """If this fails, contenders need no code object of their own."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def run(given):
        return given.flatten(1)

    for batch in range(1, 11):
        torch.compile(run, dynamic=False)(torch.zeros(batch, 3, 2))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 8


@pytest.mark.parametrize("baseline", ["eager+bf16", "compile+bf16"])
def test_a_model_that_fails_in_another_type_is_an_error_with_the_users_line(baseline):
    class FloatConstant(nn.Module):
        def forward(self, images):
            return images.mean((2, 3)) @ torch.eye(3)

    torch._dynamo.reset()
    pytorch_contender(FloatConstant(), "eager", "cpu", True, IMAGES)()
    with pytest.raises(EnginewrightError) as caught:
        pytorch_contender(FloatConstant(), baseline, "cpu", True, IMAGES)()
    said = str(caught.value)
    assert said.startswith(
        f"benchmark.baselines: the model fails as {baseline} on input (2, 3, 8, 8); mend it, or drop this baseline: "
        "RuntimeError: expected m1 and m2 to have the same dtype"
    )
    assert said.endswith("in forward: return images.mean((2, 3)) @ torch.eye(3)") == ("compile" not in baseline)


def test_onnx_runtime_runs_the_graph_as_a_baseline(built, tiny_onnx, inference):
    record, images = read_engine(built), {"input": np.zeros((2, 3, 8, 8), np.float32)}
    with open_baseline("onnxruntime", record, images, tiny_onnx, None, inference) as bind:
        bind(images)()
        assert bind.__self__.run(images)["logits"].shape == (2, 16)


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("baseline", ["eager", "eager+channels_last+bf16", "onnxruntime"])
def test_a_baseline_gets_the_pixels_of_the_engine_and_normalizes_them(
    built, samples, inference, tmp_path, layout, baseline
):
    record, seen = read_engine(built), []
    record = record.model_copy(update={"build": record.build.model_copy(update={"pixels": layout})})
    graph = "g (float[batch,3,8,8] input) => (float[] logits) { logits = Identity (input) }"
    onnx.save(model_of_text(graph, {}), tmp_path / "m")

    def look(images):
        seen.append(images.float().numpy())
        return images

    class Looking(nn.Module):
        forward = staticmethod(look)

    feeds = samples.fed_to(record.build).cycled(2)
    with open_baseline(baseline, record, feeds, tmp_path / "m", Looking, inference) as bind:
        call = bind(feeds)
        call()
    found = seen[-1] if seen else inspect.getclosurevars(call).nonlocals["binding"].copy_outputs_to_cpu()[0]
    assert found == pytest.approx(samples.cycled(2)["input"], abs=0.05 if "bf16" in baseline else 1e-6)


def test_pytorch_is_loaded_for_a_baseline_that_it_runs(built, inference):
    with open_baseline("eager", read_engine(built), IMAGES, None, RecordingModel, inference) as bind:
        calls.clear()
        bind(IMAGES)()
    assert len(calls) == 1


@pytest.mark.parametrize("baseline", ["cuda_graph+fp16", "torch_tensorrt", "torch_tensorrt+bf16"])
def test_a_baseline_that_needs_a_gpu_is_refused_without_one(baseline):
    with pytest.raises(EnginewrightError, match=rf"benchmark\.baselines: {re.escape(baseline)} needs a GPU"):
        require_possible(("eager", baseline), "cpu")


def test_torch_tensorrt_that_is_not_installed_is_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(EnginewrightError) as caught:
        require_possible(("eager", "torch_tensorrt+fp16"), "cuda")
    assert str(caught.value) == (
        "benchmark.baselines: Torch-TensorRT is not installed: `pip install torch-tensorrt==2.14.0` puts "
        "PyTorch 2.14 and TensorRT 11.1 in place of yours"
    )


def test_graphs_are_captured_on_a_gpu():
    require_possible(("cuda_graph",), "cuda")


def test_onnx_runtime_is_raced_only_on_the_engines_device():
    require_possible(("eager", "onnxruntime"), "cpu")
    with pytest.raises(
        EnginewrightError, match=r"benchmark\.baselines: onnxruntime would run on cpu .* and the engine on cuda"
    ):
        require_possible(("eager", "onnxruntime"), "cuda")
    require_possible(("onnxruntime_cpu",), "cuda")  # beside a GPU's engine, where that is meant


def test_onnx_runtime_that_is_not_installed_is_a_sentence(monkeypatch):
    absent = SimpleNamespace(missing=lambda: "no onnxruntime here", device=lambda: "cpu")
    monkeypatch.setattr("enginewright.pipeline.speed.load_runtime", lambda name: absent)
    with pytest.raises(EnginewrightError, match=r"benchmark\.baselines: no onnxruntime here"):
        require_possible(("eager", "onnxruntime"), "cpu")


def test_only_images_get_another_layout_and_only_floats_another_type():
    given = {}

    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, numbers, image):
            given.update(numbers=numbers, image=image)
            return {"map": self.conv(image), "none": None}

    feeds = {"image": IMAGES["input"], "numbers": np.array([[1, 2], [3, 4]])}
    pytorch_contender(Pair().eval(), "channels_last+bf16", "cpu", True, feeds)()
    assert is_channels_last(given["image"])
    assert given["image"].dtype == torch.bfloat16
    assert given["numbers"].dtype == torch.int64
    assert given["numbers"].tolist() == [[1, 2], [3, 4]]


def test_a_captured_graph_keeps_the_model_whose_weights_it_reads(monkeypatch):
    """A CUDA graph has only addresses: weights that nothing else keeps would be freed before it is replayed."""
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda chosen: nullcontext(),
        "CUDAGraph": lambda: SimpleNamespace(replay=lambda: None),
        "graph": lambda captured: nullcontext(),
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)

    def captured():
        model = nn.Linear(2, 2)
        return _captured(lambda: {"logits": model(torch.zeros(1, 2))}), weakref.ref(model)

    replay, model = captured()
    gc.collect()
    assert model() is not None
    assert replay()["logits"].shape == (1, 2)
