"""Where the weights come from: trained here, published by torchvision, or the user's own checkpoint."""

import urllib.error
from pathlib import Path

import torch
import torchvision
from torch import nn

from enginery.core.brought import brought
from enginery.core.errors import EngineryError
from enginery.core.params import WeightsParams
from enginery.models import load_model, make_model, require_finite, require_logits
from enginery.samples import SampleSet
from enginery.training import train


def obtain(model_name: str, params: WeightsParams, training: SampleSet, data: Path) -> nn.Module:
    """The model with its weights. The number of classes is what the samples say."""
    classes, size = len(training.manifest.class_names), training.pixels.shape[-1]
    keyword = params.source in ("train", "pretrained")
    checkpoint = None if keyword else brought(params.source, data, "weights.source", "train, pretrained")
    require_logits(make_model(model_name, classes), classes, size)
    if checkpoint:
        return load_model(model_name, classes, checkpoint)
    if params.source == "train":
        return _trained(model_name, classes, params, training)
    return _pretrained(model_name, classes)


def _trained(model_name: str, classes: int, params: WeightsParams, training: SampleSet) -> nn.Module:
    torch.manual_seed(params.training.seed)
    model = make_model(model_name, classes)
    train(model, training, params.training)
    require_finite(model.state_dict(), Path("the trained model"))
    return model


def _pretrained(model_name: str, classes: int) -> nn.Module:
    published = torchvision.models.get_model_weights(model_name).DEFAULT  # each classifier has some
    known = len(published.meta["categories"])
    if known != classes:
        raise EngineryError(
            f"weights.source: torchvision's {model_name} knows {known} classes and samples.source has {classes}; "
            "give a checkpoint of your own, or weights.source: train"
        )
    try:
        model: nn.Module = torchvision.models.get_model(model_name, weights=published)
        return model.eval()
    except urllib.error.URLError as error:
        raise EngineryError(
            f"weights.source: torchvision's weights for {model_name} could not be downloaded ({error.reason}); "
            "put a checkpoint into data/weights/ and name it instead"
        ) from None
