"""The PyTorch side: making the model, and loading a checkpoint into it."""

import difflib
import pickle
from collections import OrderedDict
from pathlib import Path

import torch
import torchvision
from torch import nn

from enginery.core.errors import EngineryError

State = dict[str, torch.Tensor]


def make_model(name: str, classes: int) -> nn.Module:
    """A torchvision classifier with fresh weights, in evaluation mode."""
    classifiers = torchvision.models.list_models(torchvision.models)
    if name not in classifiers:
        near = difflib.get_close_matches(name, classifiers, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see torchvision.models.list_models()"
        raise EngineryError(f"model.name: torchvision has no classifier '{name}'; {hint}")
    model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes)
    return model.eval()


def require_logits(model: nn.Module, classes: int, size: int) -> None:
    """One pass over an empty image: what the model cannot take or does not return is said before hours of work."""
    try:
        with torch.inference_mode():
            output = model(torch.zeros(2, 3, size, size))
    except Exception as error:  # whatever the user's network raises
        raise EngineryError(
            f"model.name: the model fails on images of {size} by {size}: {_first_line(error)}"
        ) from None
    if not isinstance(output, torch.Tensor) or output.shape != (2, classes):
        shape = tuple(output.shape) if isinstance(output, torch.Tensor) else type(output).__name__
        raise EngineryError(f"model.name: the model must return logits of shape (batch, {classes}), not {shape}")


def load_model(name: str, classes: int, checkpoint: Path) -> nn.Module:
    model = make_model(name, classes)
    apply_weights(model, read_checkpoint(checkpoint), checkpoint)
    return model


def read_checkpoint(path: Path) -> State:
    """Tensors only (`weights_only`): a checkpoint that wants to run code on loading is refused."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise EngineryError(
            f"{path} holds more than tensors, or is not a PyTorch checkpoint; "
            "save it again with torch.save(model.state_dict(), path)"
        ) from None
    except FileNotFoundError:
        raise
    except Exception as error:  # damage surfaces wherever torch's reader happens to be
        raise EngineryError(f"{path} cannot be read, it may be truncated: {_first_line(error)}") from None
    for wrapper in ("state_dict", "model_state_dict", "model"):  # the names that training scripts use
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    ):
        raise EngineryError(f"{path} is not a state dict: it must map parameter names to tensors")
    # What DataParallel puts before each name.
    state = OrderedDict((name.removeprefix("module."), value) for name, value in content.items())
    versions = getattr(content, "_metadata", {})  # of the modules' code: MNASNet refuses a state without
    state._metadata = {name.removeprefix("module").removeprefix("."): each for name, each in versions.items()}  # type: ignore[attr-defined]
    return state


def apply_weights(model: nn.Module, state: State, path: Path) -> None:
    wanted = model.state_dict()
    missing, unknown = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or unknown:
        parts = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
        parts += [f"{len(unknown)} unknown ({_some(unknown)})"] if unknown else []
        raise EngineryError(f"{path} does not fit model.name: its keys differ: {', '.join(parts)}")
    misshapen = [
        f"{name} is {tuple(state[name].shape)} and should be {tuple(value.shape)}"
        for name, value in wanted.items()
        if state[name].shape != value.shape
    ]
    if misshapen:
        raise EngineryError(f"{path} does not fit model.name: {_some(misshapen)}")
    require_finite(state, path)
    model.load_state_dict(state)


def require_finite(state: State, path: Path) -> None:
    broken = [name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()]
    if broken:
        raise EngineryError(f"{path} has NaN or infinite values in {_some(broken)}: its training went wrong")


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
