"""PyTorch as people use it, each way a call that does one whole inference."""

import copy
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from enginery.core.params import Baseline


def pytorch_contender(
    model: nn.Module, kind: Baseline, images: NDArray[np.float32], device: str
) -> Callable[[], object]:
    own = copy.deepcopy(model).to(device)
    placed = torch.from_numpy(images).to(device)
    if kind == "channels_last":
        own, placed = own.to(memory_format=torch.channels_last), placed.to(memory_format=torch.channels_last)
    run = torch.compile(own) if kind == "compile" else own

    def call() -> None:
        with torch.inference_mode():
            run(placed)
        if device == "cuda":
            torch.cuda.synchronize()

    return call
