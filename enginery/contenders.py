"""PyTorch as people use it, and ONNX Runtime: each way a call that does one whole inference."""

import copy
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params import ONNXRUNTIME, Baseline, BuildParams, InferenceParams
from enginery.runtimes import Session, load_runtime

Model = Callable[[torch.Tensor], torch.Tensor]
NUMBERS = {"fp16": torch.float16, "bf16": torch.bfloat16}
WARM_UP = 3


def require_possible(baselines: Sequence[Baseline], device: str) -> None:
    impossible = [baseline for baseline in baselines if "cuda_graph" in baseline.split("+")]
    if impossible and device != "cuda":
        raise EngineryError(f"benchmark.baselines: {impossible[0]} needs a GPU, and the runtime chosen here uses none")
    if ONNXRUNTIME in baselines and (problem := load_runtime(ONNXRUNTIME).missing()):
        raise EngineryError(f"benchmark.baselines: {problem}")


@contextmanager
def onnxruntime_session(onnx: Path, build: BuildParams, inference: InferenceParams) -> Iterator[Session]:
    """The float32 graph in ONNX Runtime, optimized as if it were an engine; on the GPU where there is one."""
    runtime = load_runtime(ONNXRUNTIME)
    with tempfile.TemporaryDirectory() as folder:
        runtime.compile(onnx, Path(folder), build)
        (session,) = runtime.load(Path(folder), build, inference, requests=1)
        with closing(session):
            yield session


def pytorch_contender(
    model: nn.Module, baseline: Baseline, device: str, tf32: bool, images: NDArray[np.float32]
) -> Callable[[], object]:
    """On a GPU with the same copies, pinned memory, clock and arithmetic as the engine that it races."""
    words = baseline.split("+")
    numbers = next((NUMBERS[word] for word in words if word in NUMBERS), torch.float32)
    layout = torch.channels_last if "channels_last" in words else torch.contiguous_format
    own = copy.deepcopy(model).to(device, numbers).to(memory_format=layout)
    given = torch.from_numpy(images).contiguous(memory_format=layout)
    run = _compiled(lambda images: own(images.to(numbers)), words)
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        return _on_gpu(run, given.pin_memory(), replay="cuda_graph" in words)

    def call() -> None:
        with torch.inference_mode():
            run(given)

    return call


def _compiled(run: Model, words: Sequence[str]) -> Model:
    """For this shape alone, as an engine is tuned for one."""
    if "compile" in words:
        return torch.compile(run, dynamic=False)
    if "max_autotune" in words:
        return torch.compile(run, dynamic=False, mode="max-autotune")
    return run


def _on_gpu(run: Model, pinned: torch.Tensor, replay: bool) -> Callable[[], float]:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    placed = torch.empty_like(pinned, device="cuda")
    launch = _captured(lambda: run(placed)) if replay else lambda: run(placed)
    with torch.inference_mode():
        host = torch.empty_like(launch(), device="cpu", pin_memory=True)

    def call() -> float:
        with torch.inference_mode():
            placed.copy_(pinned, non_blocking=True)
            before.record()
            logits = launch()
            after.record()
            host.copy_(logits, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return float(before.elapsed_time(after)) / 1000

    return call


def _captured(work: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """The kernels of `work` as one CUDA graph, which reads and writes the same memory each time."""
    aside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.inference_mode(), torch.cuda.stream(aside):
        for _ in range(WARM_UP):  # libraries choose their kernels now, not while these are captured
            work()
    torch.cuda.current_stream().wait_stream(aside)
    with torch.inference_mode(), torch.cuda.graph(graph):
        result = work()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay
