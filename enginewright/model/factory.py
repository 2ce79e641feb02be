"""Make the PyTorch model: torchvision's, or by the user's own factory."""

import difflib
import importlib
from collections.abc import Callable

import torch
import torchvision
from torch import nn
from torch.nn.parameter import is_lazy

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import ModelParams
from enginewright.core.text import first_few, first_line
from enginewright.core.user_modules import look_in_folders_above
from enginewright.model.from_timm import make_from_timm
from enginewright.model.from_transformers import make_from_transformers
from enginewright.model.one_stage import as_graph, detector_names
from enginewright.model.user_code import USER_ERRORS, describe_user_error


def make_model(params: ModelParams, classes: int | None) -> nn.Module:
    """Return a new model in evaluation mode, whose weights are those that its code begins with."""
    match params.library:
        case "timm":
            return make_from_timm(params, classes)
        case "transformers":
            return make_from_transformers(params.arguments)
    return _from_factory(params) if params.is_factory else _from_torchvision(params, classes)


def _from_torchvision(params: ModelParams, classes: int | None) -> nn.Module:
    segmenters = torchvision.models.list_models(torchvision.models.segmentation)
    known = [*torchvision.models.list_models(torchvision.models), *segmenters, *detector_names()]
    if params.source not in known:
        near = difflib.get_close_matches(params.source, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see torchvision.models.list_models()."
        raise EnginewrightError(
            f"model.source: torchvision has no model '{params.source}' for these tasks; {hint} "
            "A model of your own is package.module:factory"
        )
    is_detector = params.source in detector_names()
    columns = classes + 1 if classes is not None and is_detector else classes  # torchvision's class 0 is the background
    arguments = ({} if columns is None else {"num_classes": columns}) | params.arguments
    if params.source in segmenters or is_detector:
        arguments = {"weights_backbone": None} | arguments  # torchvision would download a backbone's
    try:
        model: nn.Module = torchvision.models.get_model(params.source, weights=None, **arguments)
    except Exception as error:  # layers raise errors of many types for a size that they cannot have
        why = first_line(error) or type(error).__name__
        raise EnginewrightError(f"model.arguments: torchvision's {params.source} refuses them: {why}") from None
    return (as_graph(model) if is_detector else model).eval()


def _from_factory(params: ModelParams) -> nn.Module:
    factory = _import_factory(params.source)
    try:
        model = factory(**params.arguments)
        if isinstance(model, nn.Module):
            model.eval()
    except USER_ERRORS as error:
        raise EnginewrightError(f"model.source: {params.source} fails: {describe_user_error(error)}") from None
    return _require_usable(model, params.source)


def _import_factory(source: str) -> Callable[..., object]:
    module_name, _, name = source.partition(":")
    look_in_folders_above()
    try:
        module = importlib.import_module(module_name)
    except USER_ERRORS as error:
        raise EnginewrightError(
            f"model.source: {module_name} cannot be imported: {describe_user_error(error)}"
        ) from None
    factory: Callable[..., object] | None = getattr(module, name, None)
    if not callable(factory):
        near = difflib.get_close_matches(name, dir(module), n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise EnginewrightError(f"model.source: {module_name} has no function or class '{name}'{hint}")
    return factory


def _require_usable(model: object, source: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise EnginewrightError(f"model.source: {source} returns {type(model).__name__}, not a torch.nn.Module")
    if isinstance(model, torch.jit.ScriptModule):
        raise EnginewrightError(
            f"model.source: {source} returns a TorchScript archive, which holds code: return the "
            "torch.nn.Module that it was made of"
        )
    if lazy := sorted(name for name, value in model.named_parameters() if is_lazy(value)):
        raise EnginewrightError(
            f"model.source: {source} returns layers that do not know their sizes yet ({first_few(lazy, most=3)}): "
            "run the model once before returning it"
        )
    if odd := sorted(name for name, value in model.state_dict().items() if not isinstance(value, torch.Tensor)):
        raise EnginewrightError(
            f"model.source: {source} returns a model whose state is more than tensors ({first_few(odd, most=3)}), "
            "which no file of weights may hold: make it in the factory instead of by get_extra_state"
        )
    return model
