"""Make the PyTorch model: torchvision's, one of timm or transformers, or by the user's own factory."""

import importlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

import torch
import torchvision
from torch import nn
from torch.nn.parameter import is_lazy
from torchvision.models import detection, list_models
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import FrozenBatchNorm2d

from enginewright.core.errors import EnginewrightError
from enginewright.core.installing import how_to_install
from enginewright.core.params.model import ModelParams
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import first_few, first_line, suggestion
from enginewright.core.user_files import look_in_folders_above
from enginewright.model.from_transformers import make_from_transformers
from enginewright.model.user_code import USER_ERRORS, describe_user_error

NEAR = 1e-3  # means and deviations are written with three digits
MODES = {"squash": "stretch", "border": "pad"}  # the names of timm's crop_mode, which else scales the shorter side


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
        hint = suggestion(params.source, known, otherwise="; see torchvision.models.list_models().")
        raise EnginewrightError(
            f"model.source: torchvision has no model '{params.source}' for these tasks{hint} "
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
        hint = suggestion(name, dir(module), otherwise="")
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


def make_from_timm(params: ModelParams, classes: int | None, pretrained: bool = False) -> nn.Module:
    name = params.library_name
    timm = _timm_with(name)
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
    timm = _timm_with(name)
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
    published = preprocessing_of(_import_timm().data.resolve_data_config(model=model))
    changed = [
        f"{name} {given[name]}, where the model had {published[name]}"
        for name in ("crop", "interpolation", "resize_mode", "resize")
        if given[name] != published[name]
    ]
    for name in ("mean", "std"):
        ours, theirs = given[name], published[name]
        if len(ours) == len(theirs) and max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) > NEAR:
            changed.append(f"{name} {list(ours)}, where the model had {theirs}")
    return changed


def _one_or_both(sides: list[int]) -> int | list[int]:
    return sides[0] if len(set(sides)) == 1 else sides


def _timm_with(name: str) -> Any:
    timm = _import_timm()
    if not timm.is_model(name):
        hint = suggestion(name, timm.list_models(), otherwise="; see timm.list_models().")
        raise EnginewrightError(f"model.source: timm has no model '{name}'{hint}")
    return timm


def _import_timm() -> Any:
    try:
        import timm
        import timm.data
    except ImportError:
        raise EnginewrightError(f"model.source needs timm, which is not installed ({how_to_install('timm')})") from None
    return timm


class Detected(NamedTuple):
    boxes: torch.Tensor  # (batch, anchors, 4): left, top, right and bottom in pixels
    scores: torch.Tensor  # (batch, anchors, classes), without the background, which is torchvision's class 0


class OneStage(nn.Module):
    """A one-stage detector as a graph can have it: tensors in, boxes and scores out, before one box of each object is
    chosen. What torchvision does before and after is done by samples.preprocessing, and by the task. Its weights have
    the names that torchvision gives them."""

    def __init__(self, detector: SSD | RetinaNet | FCOS) -> None:
        super().__init__()
        self.backbone, self.head, self.anchor_generator = detector.backbone, detector.head, detector.anchor_generator
        self._kind, self._coder = type(detector), detector.box_coder
        self._anchors: tuple[object, torch.Tensor] | None = None  # what they are for, and they themselves

    def forward(self, images: torch.Tensor) -> Detected:
        height, width = images.shape[-2:]
        features = list(self.backbone(images).values())
        heads = self.head(features)
        corners = self._corners(heads["bbox_regression"], self._anchors_of(images, features))
        limits = _row([width, height, width, height], corners)
        return Detected(torch.minimum(corners.clamp(min=0), limits), self._scores(heads)[..., 1:])

    def _anchors_of(self, images: torch.Tensor, features: list[torch.Tensor]) -> torch.Tensor:
        """Return the anchors of one image, which are those of all, and constants of a graph: they depend on its size
        alone. torchvision makes them on the CPU, from which nothing may be copied while a CUDA graph is recorded."""
        if torch.compiler.is_compiling():
            return self._new_anchors(images, features)
        made_for, kept = (images.shape[-2:], features[0].dtype, features[0].device), self._anchors
        if kept is None or kept[0] != made_for:
            self._anchors = kept = made_for, self._new_anchors(images, features)
        return kept[1]

    def _new_anchors(self, images: torch.Tensor, features: list[torch.Tensor]) -> torch.Tensor:
        (anchors,) = self.anchor_generator(ImageList(images, [tuple(images.shape[-2:])]), features)
        return cast(torch.Tensor, anchors)

    def _corners(self, found: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Decode a batch as torchvision's coders do, of which one takes single images only."""
        begin, end = anchors[:, :2], anchors[:, 2:]
        centre, extent = (begin + end) / 2, end - begin
        if issubclass(self._kind, FCOS):  # distances to the four sides
            sizes = torch.cat([extent, extent], dim=-1) if self._coder.normalize_by_size else 1
            near, far = (found * sizes).split(2, dim=-1)
            return torch.cat([centre - near, centre + far], dim=-1)
        coder = self._coder
        shift, growth = (found / _row(coder.weights, found)).split(2, dim=-1)
        middle = centre + shift * extent
        half = extent * growth.clamp(max=coder.bbox_xform_clip).exp() / 2
        return torch.cat([middle - half, middle + half], dim=-1)

    def _scores(self, heads: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = heads["cls_logits"]
        if issubclass(self._kind, SSD):
            return logits.softmax(dim=-1)
        if issubclass(self._kind, FCOS):
            return (logits.sigmoid() * heads["bbox_ctrness"].sigmoid()).sqrt()
        return logits.sigmoid()


def _row(numbers: Iterable[float], beside: torch.Tensor) -> torch.Tensor:
    """Return a tensor of these numbers, without copying any to the device of another."""
    return torch.cat([beside.new_full((1,), number) for number in numbers])


def detector_names() -> list[str]:
    return list(list_models(detection))


def as_graph(detector: nn.Module) -> nn.Module:
    """Return a detector of torchvision as a graph can have it."""
    if not isinstance(detector, SSD | RetinaNet | FCOS):
        raise EnginewrightError(
            f"model.source: torchvision's {type(detector).__name__} proposes regions first, whose number depends on "
            "the image, and PyTorch's exporter stops where torchvision.ops.batched_nms branches on it "
            "(GuardOnDataDependentSymNode). Take a one-stage detector: ssd300_vgg16, ssdlite320_mobilenet_v3_large, "
            "retinanet_resnet50_fpn, retinanet_resnet50_fpn_v2, fcos_resnet50_fpn. Or give an ONNX file of your own"
        )
    return OneStage(detector)


def with_usual_epsilon(detector: nn.Module) -> nn.Module:
    """Return published detectors, in whose normalization torchvision sets epsilon to 0, with its usual value: a new
    model, which only takes over the weights, has that one. The variance makes up for the difference."""
    for layer in detector.modules():
        if isinstance(layer, FrozenBatchNorm2d):
            usual = FrozenBatchNorm2d(1).eps
            layer.running_var += layer.eps - usual
            layer.eps = usual
    return detector
