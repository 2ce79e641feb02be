"""Models of the package timm, by their names."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import ModelParams
from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.text import first_line

NEAR = 1e-3  # means and deviations are written with three digits
MODES = {"squash": "stretch", "border": "pad"}  # the names of timm's crop_mode, which else scales the shorter side


def make_from_timm(params: ModelParams, classes: int | None, pretrained: bool = False) -> nn.Module:
    timm, name = _import_timm(), params.library_name
    _require_known(timm, name)
    arguments = ({} if classes is None else {"num_classes": classes}) | params.arguments
    try:
        model: nn.Module = timm.create_model(name, pretrained=pretrained, **arguments)
    except Exception as error:  # the library and its downloads raise errors of many types
        if not pretrained:
            raise EnginewrightError(
                f"model.source: timm's {name}: it refuses model.arguments: {first_line(error)}"
            ) from None
        raise EnginewrightError(
            f"weights.source: the pretrained weights of timm's {name} could not be had; without a network give a "
            f"checkpoint in data/weights/: {first_line(error)}"
        ) from None
    return model.eval()


def published_preprocessing(name: str) -> tuple[str, dict[str, Any]] | None:
    """Return the full name of timm's weights for a model, and how they want images; None if it has no weights. Nothing
    is made or downloaded."""
    timm = _import_timm()
    _require_known(timm, name)
    try:
        config = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise EnginewrightError(f"model.source: timm's {name}: {first_line(error)}") from None
    if config is None:
        return None
    found = preprocessing_of(timm.data.resolve_data_config(pretrained_cfg=config.to_dict()))
    return ".".join(filter(None, (config.architecture, config.tag))) or name, found


def preprocessing_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a data configuration of timm in the words of samples.preprocessing."""
    channels, *crop = config["input_size"]
    mode = MODES.get(config.get("crop_mode", ""), "shorter_side")
    scaled = [math.floor(side / config["crop_pct"]) for side in crop]
    mean = list(config["mean"])
    return {
        "resize": max(scaled) if mode == "shorter_side" else _one_or_both(scaled),
        "resize_mode": mode,
        "crop": _one_or_both(crop),
        "interpolation": config["interpolation"],
        "color": "grey" if channels == 1 else "rgb",
        "divide_by": 255,
        "mean": mean,
        "std": list(config["std"]),
    } | ({"fill": round(255 * sum(mean) / len(mean))} if mode == "pad" else {})


def differences(model: nn.Module, how: Preprocessing | None) -> list[str]:
    """Say where params.yaml prepares images in another way than the model was trained on."""
    if how is None:
        return []
    given = how.model_dump()
    given |= {name: _one_or_both(list(given[name])) for name in ("resize", "crop")}
    wanted = preprocessing_of(_import_timm().data.resolve_data_config(model=model))
    changed = [
        f"{name} {given[name]}, where the model had {wanted[name]}"
        for name in ("crop", "interpolation", "resize_mode", "resize")
        if given[name] != wanted[name]
    ]
    for name in ("mean", "std"):
        ours, theirs = given[name], wanted[name]
        if len(ours) == len(theirs) and max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) > NEAR:
            changed.append(f"{name} {list(ours)}, where the model had {theirs}")
    return changed


def _one_or_both(sides: list[int]) -> int | list[int]:
    return sides[0] if len(set(sides)) == 1 else sides


def _require_known(timm: Any, name: str) -> None:
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"did you mean '{near[0]}'?" if near else "see timm.list_models()."
        raise EnginewrightError(f"model.source: timm has no model '{name}'; {hint}")


def _import_timm() -> Any:
    try:
        import timm
        import timm.data
    except ImportError:
        raise EnginewrightError("model.source: timm is not installed: pip install -e '.[timm]'") from None
    return timm
