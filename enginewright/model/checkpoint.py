"""Read a checkpoint, load it into a model, and call the model by the names of its inputs."""

import pickle
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.core.params.model import ModelParams
from enginewright.core.text import first_few, first_line
from enginewright.model.factory import make_model

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


WEIGHTS, WEIGHTS_RECORD = "weights.pt", "weights.json"


class Weights(Record):
    """The model, and where its weights come from; `classes` is how many it was made for, None if that is unknown."""

    model: str
    arguments: dict[str, Any]
    source: str
    classes: int | None
    sha256: str


def save_weights(model: nn.Module, file: Path) -> None:
    with file.open("wb") as opened:  # of a file that PyTorch opens itself, it does not say that the disk is full
        torch.save(model.state_dict(), opened)


def load_model(folder: Path) -> nn.Module:
    """Return the model that the stage `weights` wrote."""
    record = Weights.read(folder / WEIGHTS_RECORD)
    model = make_model(ModelParams(source=record.model, arguments=record.arguments), record.classes)
    apply_weights(model, read_checkpoint(folder / WEIGHTS), folder / WEIGHTS)
    return model


def read_checkpoint(path: Path) -> State:
    """Return the tensors of a checkpoint, and refuse a file that would run code when it is loaded."""
    if path.is_file() and not path.stat().st_size:
        raise EnginewrightError(f"{path} is empty: copy the checkpoint again")
    content = _load(path)
    for wrapper in ("state_dict", "model_state_dict", "model"):  # the names that training scripts use
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    ):
        raise EnginewrightError(f"{path} is not a state dict: it must map parameter names to tensors")
    if odd := sorted(name for name, value in content.items() if value.layout != torch.strided or value.is_meta):
        raise EnginewrightError(
            f"{path} holds tensors that are sparse, or without values, in {first_few(odd, most=3)}: save them dense"
        )
    return _state(content, getattr(content, "_metadata", {}))


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        _, found, name = str(error).partition("GLOBAL ")  # PyTorch may name the function that the file would have run
        ran = f": loading it would run {name.split(' ')[0]}, so it is refused"
        raise EnginewrightError(
            f"{path} holds more than tensors{ran if found else ', or is not a PyTorch checkpoint'}; "
            "save it again with torch.save(model.state_dict(), path)"
        ) from None
    except (FileNotFoundError, IsADirectoryError):
        raise
    except Exception as error:  # the type of error depends on where the file is damaged
        if "TorchScript" in str(error):
            raise EnginewrightError(
                f"{path} is a TorchScript archive, which holds code: save the tensors alone, with "
                "torch.save(model.state_dict(), path)"
            ) from None
        of_zip = "PytorchStreamReader" in str(error)  # it names what PyTorch's library of zip files is called inside
        why = ", so copy it again" if of_zip else f": {first_line(error)}"
        raise EnginewrightError(f"{path} cannot be read, it may be truncated{why}") from None


def _state(tensors: State, versions: Mapping[str, Any]) -> State:
    """Return a state dict with the versions of the modules' code, without which MNASNet refuses to load it."""
    state = OrderedDict(tensors)
    state._metadata = versions  # type: ignore[attr-defined]
    return state


def apply_weights(model: nn.Module, state: State, path: Path, classes: int = 0) -> None:
    """Load the state into the model; `classes` are those of the samples, if the model was made for so many."""
    needed = model.state_dict()
    if needed.keys() != state.keys():
        state = _without_prefix(state)
    keys = {"missing": sorted(needed.keys() - state.keys()), "unknown": sorted(state.keys() - needed.keys())}
    if parts := [f"{len(names)} {what} ({first_few(names, most=3)})" for what, names in keys.items() if names]:
        raise EnginewrightError(f"{path} does not fit model.source: its keys differ: {', '.join(parts)}")
    if misshapen := [
        f"{name} is {tuple(state[name].shape)} and should be {tuple(value.shape)}"
        for name, value in needed.items()
        if state[name].shape != value.shape
    ]:
        where, which = f"{path} does not fit model.source", first_few(misshapen, most=3)
        if classes:
            raise EnginewrightError(f"{where} and the classes of samples.source: {which}")
        raise EnginewrightError(
            f"{where} and model.arguments, which say how many classes there are, such as {{num_classes: 10}}: {which}"
        )
    if differing := [
        f"{name} " + f"is {state[name].dtype} and should be {value.dtype}".replace("torch.", "")
        for name, value in needed.items()
        if _kind(state[name]) != _kind(value)
    ]:
        raise EnginewrightError(f"{path} does not fit model.source: {first_few(differing, most=3)}")
    require_finite(state, path, not_finite(needed))
    model.load_state_dict(state)


def _kind(value: torch.Tensor) -> str:
    """Return the kind of numbers, since PyTorch silently copies one kind into another, such as int8 into float."""
    return "float" if value.is_floating_point() else "complex" if value.is_complex() else "whole"


def _without_prefix(state: State) -> State:
    """Remove the `module.` that DataParallel puts before the name of each tensor and module."""
    if not all(name.startswith("module.") for name in state):
        return state
    versions = getattr(state, "_metadata", {})
    return _state(
        {name.removeprefix("module."): value for name, value in state.items()},
        {name.removeprefix("module").removeprefix("."): version for name, version in versions.items()},
    )


def not_finite(state: State) -> set[str]:
    return {name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()}


def require_finite(state: State, path: Path, by_design: Collection[str]) -> None:
    """Refuse NaN and infinity, except `by_design` where a new model has them too, such as in a mask."""
    if broken := first_few(sorted(not_finite(state) - set(by_design)), most=3):
        raise EnginewrightError(f"{path} has NaN or infinite values in {broken}: its training went wrong")
