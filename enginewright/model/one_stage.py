"""torchvision's one-stage detectors as a graph can have them: tensors in, boxes and scores out, before one box of each
object is chosen. What torchvision does before and after is done by samples.preprocessing, and by the task."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torchvision.models import detection, list_models
from torchvision.models.detection.fcos import FCOS
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.retinanet import RetinaNet
from torchvision.models.detection.ssd import SSD
from torchvision.ops import FrozenBatchNorm2d

from enginewright.core.errors import EnginewrightError


class Detected(NamedTuple):
    boxes: torch.Tensor  # (batch, anchors, 4): left, top, right and bottom in pixels
    scores: torch.Tensor  # (batch, anchors, classes), without the background, which is torchvision's class 0


class OneStage(nn.Module):
    """A detector, whose weights have the names that torchvision gives them."""

    def __init__(self, detector: SSD | RetinaNet | FCOS) -> None:
        super().__init__()
        self.backbone, self.head, self.anchor_generator = detector.backbone, detector.head, detector.anchor_generator
        self._kind, self._coder = type(detector), detector.box_coder

    def forward(self, images: torch.Tensor) -> Detected:
        height, width = images.shape[-2:]
        features: Any = self.backbone(images)
        features = list(features.values())
        heads = self.head(features)
        # The anchors of one image are those of all. They depend on its size alone, so that they become constants.
        (anchors,) = self.anchor_generator(ImageList(images, [(height, width)]), features)
        corners = self._corners(heads["bbox_regression"], anchors)
        limits = torch.tensor([width, height, width, height], dtype=corners.dtype)
        return Detected(torch.minimum(corners.clamp(min=0), limits), self._scores(heads)[..., 1:])

    def _corners(self, found: torch.Tensor, anchors: torch.Tensor) -> torch.Tensor:
        """Decode a batch as torchvision's coders do, of which one takes single images only."""
        begin, end = anchors[:, :2], anchors[:, 2:]
        centre, extent = (begin + end) / 2, end - begin
        if issubclass(self._kind, FCOS):  # distances to the four sides
            sizes = torch.cat([extent, extent], dim=-1) if self._coder.normalize_by_size else 1
            near, far = (found * sizes).split(2, dim=-1)
            return torch.cat([centre - near, centre + far], dim=-1)
        coder = self._coder
        shift, growth = (found / torch.tensor(coder.weights)).split(2, dim=-1)
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
