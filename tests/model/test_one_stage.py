"""torchvision's one-stage detectors as graphs: the boxes are those of torchvision itself."""

import numpy as np
import pytest
import torch
import torchvision
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models.detection.image_list import ImageList
from torchvision.models.detection.ssd import SSD
from torchvision.ops import FrozenBatchNorm2d, batched_nms

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import BoxesParams, ModelParams
from enginewright.model.factory import as_graph, make_model, with_usual_epsilon
from enginewright.tasks.boxes import find_boxes

SIZE, CLASSES = 128, 4


def detector(name):
    """Return a new detector whose outputs depend on images: its layers' statistics and scales are fitted to some."""
    torch.manual_seed(0)
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None, num_classes=CLASSES + 1)
    images = torch.randn(2, 3, SIZE, SIZE)
    for layer in model.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
    with torch.no_grad():
        model.train()
        model.head(list(model.backbone(images).values()))
        model.eval()
        for name, found in model.head(list(model.backbone(images).values())).items():
            for parameter, values in model.named_parameters():
                if name.replace("regression", "reg") in parameter and parameter.endswith("weight"):
                    values /= found.std()
    return model, images


def boxes_of_torchvision(model, images):
    features = list(model.backbone(images).values())
    heads, listed = model.head(features), ImageList(images, [(SIZE, SIZE)] * len(images))
    anchors = model.anchor_generator(listed, features)
    if not isinstance(model, SSD):  # others choose in each level
        places = [level.shape[2] * level.shape[3] for level in features]
        counts = [count * heads["cls_logits"].shape[1] // sum(places) for count in places]
        heads = {name: list(values.split(counts, dim=1)) for name, values in heads.items()}
        anchors = [list(each.split(counts)) for each in anchors]
    for found in model.postprocess_detections(heads, anchors, listed.image_sizes):
        rows = torch.column_stack([found["boxes"], found["scores"], found["labels"] - 1]).numpy()
        yield rows[rows[:, 5] >= 0][:100]  # some heads score the background, too


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn", "fcos_resnet50_fpn"])
def test_the_boxes_are_those_of_torchvision(name):
    model, images = detector(name)
    graph = as_graph(model)
    assert graph.state_dict().keys() == model.state_dict().keys()
    with torch.inference_mode():
        boxes, scores = (output.numpy() for output in graph(images))
        least = float(np.sort(scores, axis=None)[-200])
        model.score_thresh, model.nms_thresh, model.detections_per_img, model.topk_candidates = least, 0.5, 10**6, 10**6
        wanted = list(boxes_of_torchvision(model, images))
    how = BoxesParams(form="xyxy", unit="pixels", score=least, iou=0.5, sure=least)
    for index, rows in enumerate(wanted):
        found = find_boxes([boxes[index], scores[index]], how, None)
        assert len(rows) > 50
        assert found == pytest.approx(rows, abs=1e-4)


class Elsewhere(TorchDispatchMode):
    """Asserts that nothing is made on the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        assert not isinstance(result, torch.Tensor) or result.is_meta, func
        return result


@pytest.mark.parametrize("name", ["ssdlite320_mobilenet_v3_large", "retinanet_resnet50_fpn", "fcos_resnet50_fpn"])
def test_a_detector_runs_on_a_gpu_and_copies_nothing_to_it_after_its_first_call(name):
    model = torchvision.models.get_model(name, weights=None, weights_backbone=None)
    graph, images = as_graph(model).eval().to("meta", torch.float16), torch.zeros(2, 3, SIZE, SIZE)
    with torch.inference_mode():
        graph(images.to("meta", torch.float16))
        with Elsewhere():
            boxes, _ = graph(torch.ones_like(images, device="meta", dtype=torch.float16))
    assert boxes.is_meta


def test_the_background_is_no_class_of_the_samples():
    params = ModelParams(source="ssdlite320_mobilenet_v3_large", arguments={})
    with torch.inference_mode():
        boxes, scores = make_model(params, 3)(torch.zeros(1, 3, SIZE, SIZE))
    assert (scores.shape[2], boxes.shape[:2]) == (3, scores.shape[:2])


def test_detectors_that_propose_regions_are_refused_in_a_sentence():
    params = ModelParams(source="fasterrcnn_mobilenet_v3_large_320_fpn", arguments={})
    with pytest.raises(
        EnginewrightError, match=r"torchvision's FasterRCNN proposes regions first, .* ssd300_vgg16, ssdlite"
    ):
        make_model(params, 3)


def test_pytorch_still_cannot_export_what_they_do_with_their_regions():
    """Once it exports, the two-stage detectors that docs/evidence/results.md has refused are worth another try."""

    class Chosen(torch.nn.Module):
        def forward(self, boxes, scores):
            likely = torch.where(scores > 0.5)[0]
            return batched_nms(boxes[likely], scores[likely], likely, 0.5)

    with pytest.raises(GuardOnDataDependentSymNode, match="Could not guard on data-dependent expression"):
        torch.export.export(Chosen(), (torch.rand(50, 4), torch.rand(50)), strict=False)


def test_published_weights_mean_the_same_with_the_usual_epsilon():
    layer, inputs = FrozenBatchNorm2d(3, eps=0.0), torch.rand(2, 3, 4, 4)
    layer.running_var = torch.tensor([0.5, 1e-4, 3.0])
    wanted = layer(inputs)
    assert with_usual_epsilon(layer)(inputs).numpy() == pytest.approx(wanted.numpy(), rel=1e-5)
    assert layer.eps == FrozenBatchNorm2d(3).eps
