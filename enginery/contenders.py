"""PyTorch as people use it, each way a call that does one whole inference."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from enginery.core.params import Baseline

LAYOUTS = {"channels_last": torch.channels_last}


def pytorch_contender(
    model: nn.Module, kind: Baseline, images: NDArray[np.float32], device: str, tf32: bool
) -> Callable[[], object]:
    """On a GPU with the same copies, pinned memory, clock and arithmetic as the engine that it races."""
    own = copy.deepcopy(model).to(device).to(memory_format=LAYOUTS.get(kind, torch.preserve_format))
    given = torch.from_numpy(images).contiguous(memory_format=LAYOUTS.get(kind, torch.contiguous_format))
    run = torch.compile(own) if kind == "compile" else own
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
        return _on_gpu(run, given.pin_memory())

    def call() -> None:
        with torch.inference_mode():
            run(given)

    return call


def _on_gpu(run: Callable[[torch.Tensor], torch.Tensor], pinned: torch.Tensor) -> Callable[[], float]:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    with torch.inference_mode():
        host = torch.empty_like(run(pinned.to("cuda")), device="cpu", pin_memory=True)

    def call() -> float:
        with torch.inference_mode():
            placed = pinned.to("cuda", non_blocking=True)
            before.record()
            logits = run(placed)
            after.record()
            host.copy_(logits, non_blocking=True)
        torch.cuda.current_stream().synchronize()
        return float(before.elapsed_time(after)) / 1000

    return call
