"""The PyTorch side: making the model, and loading a checkpoint into it."""

import pickle
from pathlib import Path

import torch
import torchvision
from torch import nn

from enginery.core.errors import EngineryError

State = dict[str, torch.Tensor]


def make_model(name: str, classes: int) -> nn.Module:
    """A torchvision classifier with fresh weights, in evaluation mode."""
    try:
        model: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes)
    except ValueError:
        import difflib

        near = difflib.get_close_matches(name, torchvision.models.list_models(torchvision.models), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see torchvision.models.list_models()"
        raise EngineryError(f"model.name: torchvision has no model '{name}'; {hint}") from None
    return model.eval()


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
    return {name.removeprefix("module."): value for name, value in content.items()}


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
