"""PyTorch as people use it, and ONNX Runtime: each way a call that does one whole inference."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import torch
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params.benchmark import ONNXRUNTIME, Baseline
from enginery.core.params.inference import InferenceParams
from enginery.data.feeds import Feeds
from enginery.engine.runtimes import load_runtime
from enginery.engine.runtimes.protocol import Session
from enginery.graph.interface import Blueprint
from enginery.model.call import Tensors, call_model
from enginery.model.user_code import RAISED, users_part

Model = Callable[[Tensors], Tensors]
NUMBERS = {"fp16": torch.float16, "bf16": torch.bfloat16}
WARM_UP = 3


def require_possible(baselines: Sequence[Baseline], device: str) -> None:
    impossible = [baseline for baseline in baselines if "cuda_graph" in baseline.split("+")]
    if impossible and device != "cuda":
        raise EngineryError(f"benchmark.baselines: {impossible[0]} needs a GPU, and the runtime chosen here uses none")
    if ONNXRUNTIME in baselines:
        runtime = load_runtime(ONNXRUNTIME)
        if problem := runtime.missing():
            raise EngineryError(f"benchmark.baselines: {problem}")
        if runtime.device() != device:
            raise EngineryError(
                f"benchmark.baselines: {ONNXRUNTIME} would run on {runtime.device()} here and the engine on {device}: "
                "race both on one, by another runtime, or drop it"
            )


@contextmanager
def onnxruntime_session(onnx: Path, blueprint: Blueprint, inference: InferenceParams) -> Iterator[Session]:
    """The float32 graph in ONNX Runtime, optimized as if it were an engine; on the GPU where there is one."""
    runtime = load_runtime(ONNXRUNTIME)
    with tempfile.TemporaryDirectory() as folder:
        runtime.compile(onnx, blueprint, Path(folder))
        (session,) = runtime.load(Path(folder), blueprint, inference, requests=1)
        with closing(session):
            yield session


def pytorch_contender(
    model: nn.Module, baseline: Baseline, device: str, tf32: bool, feeds: Feeds
) -> Callable[[], object]:
    """On a GPU with the same copies, pinned memory, clock and arithmetic as the engine that it races."""
    words = baseline.split("+")
    numbers = next((NUMBERS[word] for word in words if word in NUMBERS), torch.float32)
    layout = torch.channels_last if "channels_last" in words else torch.contiguous_format
    own = copy.deepcopy(model).to(device, numbers).to(memory_format=layout)
    given = {name: _laid_out(torch.tensor(array), layout) for name, array in feeds.items()}
    run = _compiled(lambda given: call_model(own, {name: _as(numbers, one) for name, one in given.items()}), words)
    run = _telling(run, baseline)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        return _on_gpu(run, {name: one.pin_memory() for name, one in given.items()}, replay="cuda_graph" in words)

    def call() -> None:
        with torch.inference_mode():
            run(given)

    return call


def _laid_out(tensor: torch.Tensor, layout: torch.memory_format) -> torch.Tensor:
    return tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor


def _as(numbers: torch.dtype, tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(numbers) if tensor.is_floating_point() else tensor


def _telling(run: Model, baseline: Baseline) -> Model:
    """What ran in float32 may fail in another type, compiled, or on a GPU: a constant that its forward makes, say."""

    def told(given: Tensors) -> Tensors:
        try:
            return run(given)
        except EngineryError:
            raise
        except RAISED as error:
            shapes = ", ".join(f"{name} {tuple(one.shape)}" for name, one in given.items())
            raise EngineryError(
                f"benchmark.baselines: the model fails as {baseline} on {shapes}; mend it, or drop this baseline: "
                f"{users_part(error)}"
            ) from None

    return told


def _compiled(run: Model, words: Sequence[str]) -> Model:
    """For this shape alone, as an engine is tuned for one."""
    if "compile" in words:
        return torch.compile(run, dynamic=False)
    if "max_autotune" in words:
        return torch.compile(run, dynamic=False, mode="max-autotune")
    return run


def _on_gpu(run: Model, pinned: Tensors, replay: bool) -> Callable[[], float]:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    placed = {name: torch.empty_like(one, device="cuda") for name, one in pinned.items()}
    launch = _captured(lambda: run(placed)) if replay else lambda: run(placed)
    with torch.inference_mode():
        hosts = {name: torch.empty_like(one, device="cpu", pin_memory=True) for name, one in launch().items()}

    def call() -> float:
        with torch.inference_mode():
            for name, one in pinned.items():
                placed[name].copy_(one, non_blocking=True)
            before.record()
            outputs = launch()
            after.record()
            for name, host in hosts.items():
                host.copy_(outputs[name], non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return float(before.elapsed_time(after)) / 1000

    return call


def _captured(work: Callable[[], Tensors]) -> Callable[[], Tensors]:
    """The kernels of `work` as one CUDA graph, which reads and writes the same memory each time."""
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(aside):
        for _ in range(WARM_UP):  # libraries choose their kernels now, not while these are captured
            work()
    torch.cuda.current_stream().wait_stream(aside)
    with torch.inference_mode(), torch.cuda.graph(graph):
        result = work()

    # The graph reads the model's weights where they lie, and does not keep them: else the next capture would free them.
    def replay(held: Callable[[], Tensors] = work) -> Tensors:
        graph.replay()
        return result

    return replay
