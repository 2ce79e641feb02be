"""Call a PyTorch model by the names of its inputs, and name its outputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from enginewright.core.errors import EnginewrightError

State = dict[str, torch.Tensor]
Tensors = dict[str, torch.Tensor]
OUTPUT = "logits"  # the name of an output that the model gives no name


def call_model(model: nn.Module, feeds: Mapping[str, torch.Tensor]) -> Tensors:
    """Call the model with one input by position, or several by name, and return its outputs by name."""
    return name_outputs(model(*feeds.values()) if len(feeds) == 1 else model(**feeds))


def name_outputs(result: Any) -> Tensors:
    """Return the outputs by name, from a tensor, a dict, a named tuple, a tuple or a list; leave out None."""
    if isinstance(result, torch.Tensor):
        return {OUTPUT: result}
    if isinstance(result, Mapping):
        named = {str(name): value for name, value in result.items()}
    elif isinstance(result, tuple | list):
        names = getattr(result, "_fields", [f"output_{index}" for index in range(len(result))])
        named = dict(zip(names, result, strict=True))
    else:
        raise EnginewrightError(f"model.source: the model returns {type(result).__name__}, not tensors")
    found = {name: value for name, value in named.items() if value is not None}
    for name, value in found.items():
        if not isinstance(value, torch.Tensor):
            raise EnginewrightError(f"model.source: output {name} is {type(value).__name__}, not a tensor")
    if not found:
        raise EnginewrightError(f"model.source: the model returns {type(result).__name__} without a tensor")
    return found
