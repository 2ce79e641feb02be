"""The PyTorch side: making the user's model, calling it, and loading weights into it."""

import difflib
import importlib
import pickle
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch.nn.parameter import is_lazy

from enginery.core.errors import EngineryError
from enginery.core.params import ModelParams
from enginery.core.records import Weights
from enginery.user_code import RAISED, users_part

State = dict[str, torch.Tensor]
Tensors = dict[str, torch.Tensor]
OUTPUT = "logits"  # what a model's only output is called
WEIGHTS, RECORD = "weights.pt", "weights.json"


def load_model(folder: Path) -> nn.Module:
    """What the stage `weights` left."""
    record = Weights.read(folder / RECORD)
    model = make_model(ModelParams(source=record.model, arguments=record.arguments), record.classes)
    apply_weights(model, read_checkpoint(folder / WEIGHTS), folder / WEIGHTS)
    return model


def make_model(params: ModelParams, classes: int | None) -> nn.Module:
    """In evaluation mode, with whatever weights a new one has."""
    return _from_factory(params) if params.is_factory else _from_torchvision(params, classes)


def _from_torchvision(params: ModelParams, classes: int | None) -> nn.Module:
    classifiers = torchvision.models.list_models(torchvision.models)
    if params.source not in classifiers:
        near = difflib.get_close_matches(params.source, classifiers, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see torchvision.models.list_models()."
        raise EngineryError(
            f"model.source: torchvision has no classifier '{params.source}'; {hint} "
            "A model of your own is package.module:factory"
        )
    # Auxiliary classifiers serve training alone: some checkpoints come without them, and no engine has them.
    arguments = ({} if classes is None else {"num_classes": classes}) | params.arguments
    try:
        model: nn.Module = torchvision.models.get_model(params.source, weights=None, **arguments)
    except Exception as error:  # each layer has its own way to refuse a size
        why = _first_line(error) or type(error).__name__
        raise EngineryError(f"model.arguments: torchvision's {params.source} refuses them: {why}") from None
    return model.eval()


def _from_factory(params: ModelParams) -> nn.Module:
    module_name, _, name = params.source.partition(":")
    try:
        module = importlib.import_module(module_name)
    except RAISED as error:
        raise EngineryError(f"model.source: {module_name} cannot be imported: {users_part(error)}") from None
    factory = getattr(module, name, None)
    if not callable(factory):
        near = difflib.get_close_matches(name, dir(module), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise EngineryError(f"model.source: {module_name} has no function or class '{name}'{hint}")
    try:
        model = factory(**params.arguments)
        if isinstance(model, nn.Module):
            model.eval()
    except RAISED as error:
        raise EngineryError(f"model.source: {params.source} fails: {users_part(error)}") from None
    if not isinstance(model, nn.Module):
        raise EngineryError(f"model.source: {params.source} returns {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise EngineryError(
            f"model.source: {params.source} returns a TorchScript archive, which holds code: return the "
            "torch.nn.Module that it was made of"
        )
    if lazy := sorted(name for name, value in model.named_parameters() if is_lazy(value)):
        raise EngineryError(
            f"model.source: {params.source} returns layers that do not know their sizes yet ({_some(lazy)}): "
            "run the model once before returning it"
        )
    if odd := sorted(name for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)):
        raise EngineryError(
            f"model.source: {params.source} returns a model whose state is more than tensors ({_some(odd)}), which no "
            "file of weights may hold: make it in the factory instead of by get_extra_state"
        )
    return model


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


def read_checkpoint(path: Path) -> State:
    """Tensors only (`weights_only`): a checkpoint that wants to run code on loading is refused."""
    if path.is_file() and not path.stat().st_size:
        raise EngineryError(f"{path} is empty: bring the checkpoint anew")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise EngineryError(
            f"{path} {_what_it_needs(error)}; save it again with torch.save(model.state_dict(), path)"
        ) from None
    except (FileNotFoundError, IsADirectoryError):
        raise
    except Exception as error:  # damage surfaces wherever torch's reader happens to be
        if "TorchScript" in str(error):
            raise EngineryError(
                f"{path} is a TorchScript archive, which holds code: save the tensors alone, with "
                "torch.save(model.state_dict(), path)"
            ) from None
        raise EngineryError(f"{path} cannot be read, it may be truncated: {_first_line(error)}") from None
    for wrapper in ("state_dict", "model_state_dict", "model"):  # the names that training scripts use
        if isinstance(content, dict) and isinstance(content.get(wrapper), dict):
            content = content[wrapper]
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in content.items()
    ):
        raise EngineryError(f"{path} is not a state dict: it must map parameter names to tensors")
    if odd := sorted(name for name, value in content.items() if value.layout != torch.strided or value.is_meta):
        raise EngineryError(
            f"{path} holds tensors that are sparse, or without values, in {_some(odd)}: save them dense"
        )
    state = OrderedDict(content)
    state._metadata = getattr(content, "_metadata", {})  # type: ignore[attr-defined]
    return state


def _what_it_needs(error: Exception) -> str:
    """torch's refusal names what the file would have run."""
    _, found, name = str(error).partition("GLOBAL ")
    if not found:
        return "holds more than tensors, or is not a PyTorch checkpoint"
    return f"holds more than tensors: loading it would run {name.split(' ')[0]}, so it is refused"


def apply_weights(model: nn.Module, state: State, path: Path, classes: int = 0) -> None:
    """`classes` are those of the samples, if the model was made for them."""
    wanted = model.state_dict()
    if wanted.keys() != state.keys():
        state = _without_prefix(state)
    missing, unknown = sorted(wanted.keys() - state.keys()), sorted(state.keys() - wanted.keys())
    if missing or unknown:
        parts = [f"{len(missing)} missing ({_some(missing)})"] if missing else []
        parts += [f"{len(unknown)} unknown ({_some(unknown)})"] if unknown else []
        raise EngineryError(f"{path} does not fit model.source: its keys differ: {', '.join(parts)}")
    misshapen = [
        f"{name} is {tuple(state[name].shape)} and should be {tuple(value.shape)}"
        for name, value in wanted.items()
        if state[name].shape != value.shape
    ]
    if misshapen and classes:
        raise EngineryError(f"{path} does not fit model.source and the classes of samples.source: {_some(misshapen)}")
    if misshapen:
        raise EngineryError(
            f"{path} does not fit model.source and model.arguments, which say how many classes there are, such as "
            f"{{num_classes: 10}}: {_some(misshapen)}"
        )
    other = [name for name, value in wanted.items() if _kind(state[name]) != _kind(value)]
    if other:
        told = [f"{name} is {_dtype(state[name])} and should be {_dtype(wanted[name])}" for name in other]
        raise EngineryError(f"{path} does not fit model.source: {_some(told)}")
    require_finite(state, path, not_finite(wanted))
    model.load_state_dict(state)


def _kind(value: torch.Tensor) -> str:
    """PyTorch copies numbers of one kind into another without a word: quantized weights as if they were real."""
    return "float" if value.is_floating_point() else "complex" if value.is_complex() else "whole"


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")


def _without_prefix(state: State) -> State:
    """What DataParallel puts before each name, and before those of the modules whose versions are kept beside."""
    if not all(name.startswith("module.") for name in state):
        return state
    bare = OrderedDict((name.removeprefix("module."), value) for name, value in state.items())
    versions = getattr(state, "_metadata", {})  # of the modules' code: MNASNet refuses a state without
    bare._metadata = {name.removeprefix("module").removeprefix("."): each for name, each in versions.items()}  # type: ignore[attr-defined]
    return bare


def not_finite(state: State) -> set[str]:
    return {name for name, value in state.items() if value.is_floating_point() and not value.isfinite().all()}


def require_finite(state: State, path: Path, by_design: Collection[str]) -> None:
    """Some are not by design, such as a mask of minus infinity: a new model has those as well."""
    if broken := sorted(not_finite(state) - set(by_design)):
        raise EngineryError(f"{path} has NaN or infinite values in {_some(broken)}: its training went wrong")


def _some(names: list[str], most: int = 3) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
