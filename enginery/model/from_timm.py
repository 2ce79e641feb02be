"""Models of the package timm, by their names."""

import difflib
from typing import Any

from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params.model import ModelParams
from enginery.core.params.preprocessing import Preprocessing
from enginery.core.text import first_line

NEAR = 1e-3  # means and deviations are written with three digits


def make_from_timm(params: ModelParams, classes: int | None, pretrained: bool = False) -> nn.Module:
    timm, name = _import_timm(), params.library_name
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see timm.list_models()."
        raise EngineryError(f"model.source: timm has no model '{name}'; {hint}")
    arguments = ({} if classes is None else {"num_classes": classes}) | params.arguments
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as error:  # the library and its downloads raise errors of many types
        if not pretrained:
            raise EngineryError(
                f"model.source: timm's {name}: it refuses model.arguments: {first_line(error)}"
            ) from None
        raise EngineryError(
            f"weights.source: the pretrained weights of timm's {name} could not be had; without a network give a "
            f"checkpoint in data/weights/: {first_line(error)}"
        ) from None
    return model.eval()


def differences(model: nn.Module, how: Preprocessing | None) -> list[str]:
    """Say where params.yaml prepares images in another way than the model was trained on."""
    if how is None:
        return []
    wanted = _import_timm().data.resolve_data_config(model=model)
    found: list[tuple[str, Any, Any]] = [
        ("crop", how.crop, tuple(wanted["input_size"][1:])),
        ("interpolation", how.interpolation, wanted["interpolation"]),
        ("resize", min(how.resize), round(wanted["input_size"][1] / wanted["crop_pct"])),
    ]
    changed = [f"{name} {given}, where the model had {asked}" for name, given, asked in found if given != asked]
    for name, given, asked in (("mean", how.mean, wanted["mean"]), ("std", how.std, wanted["std"])):
        if len(given) == len(asked) and max(abs(a - b) for a, b in zip(given, asked, strict=True)) > NEAR:
            changed.append(f"{name} {list(given)}, where the model had {list(asked)}")
    return changed


def _import_timm() -> Any:
    try:
        import timm
        import timm.data
    except ImportError:
        raise EngineryError("model.source: timm is not installed: pip install -e '.[timm]'") from None
    return timm
