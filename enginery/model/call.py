"""Call a PyTorch model by the names of its inputs, and name its outputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from enginery.core.errors import EngineryError

State = dict[str, torch.Tensor]
Tensors = dict[str, torch.Tensor]
OUTPUT = "logits"  # what a model's only output is called


def call_model(model: nn.Module, feeds: Mapping[str, torch.Tensor]) -> Tensors:
    """One input is given by position, several by name; the outputs have names, whatever shape they come in."""
    result = model(*feeds.values()) if len(feeds) == 1 else model(**feeds)
    return name_outputs(result)


def name_outputs(result: Any) -> Tensors:
    """A tensor, a dict, a named tuple, or a tuple of them; what is None is left out."""
    if isinstance(result, torch.Tensor):
        return {OUTPUT: result}
    if isinstance(result, Mapping):
        named = {str(name): value for name, value in result.items()}
    elif isinstance(result, tuple | list):
        names = getattr(result, "_fields", [f"output_{index}" for index in range(len(result))])
        named = dict(zip(names, result, strict=True))
    else:
        raise EngineryError(f"model.source: the model returns {type(result).__name__}, not tensors")
    found = {name: value for name, value in named.items() if value is not None}
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise EngineryError(f"model.source: output {name} is {type(value).__name__}, not a tensor")
    if not found:
        raise EngineryError(f"model.source: the model returns {type(result).__name__} without a tensor")
    return found
