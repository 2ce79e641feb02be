"""Where the weights come from: trained here, published by torchvision, the user's checkpoint, or with the model."""

import urllib.error
from functools import partial
from pathlib import Path

import torch
import torchvision
from torch import nn

from enginery.core.brought import brought_checkpoint
from enginery.core.errors import EngineryError
from enginery.core.params import ModelParams, TrainingParams, WeightsParams
from enginery.models import apply_weights, make_model, read_checkpoint, require_finite
from enginery.original import require_runs, run_model
from enginery.samples import SampleSet
from enginery.training import train


def obtain(params: ModelParams, weights: WeightsParams, training: SampleSet, data: Path) -> nn.Module:
    """The model with its weights. How many classes there are is what the samples say, or else the weights."""
    classes = len(training.manifest.class_names) or None
    if weights.source == "train":
        return _trained(params, weights.training, classes, training)
    if weights.source == "pretrained":
        return _pretrained(params, classes)
    if weights.source == "given":
        return make_model(params, classes)
    checkpoint = brought_checkpoint(weights.source, data)
    state = read_checkpoint(checkpoint)
    model = make_model(params, classes or len(list(state.values())[-1]))  # the last is the last layer's
    apply_weights(model, state, checkpoint)
    return model


def _trained(params: ModelParams, how: TrainingParams, classes: int | None, training: SampleSet) -> nn.Module:
    torch.manual_seed(how.seed)
    model = make_model(params, classes)
    require_runs(partial(run_model, model), training.cycled(2), classes or 0)
    train(model, training, how)
    require_finite(model.state_dict(), Path("the trained model"))
    return model


def _pretrained(params: ModelParams, classes: int | None) -> nn.Module:
    make_model(params, classes)  # says what is wrong with the name
    published = torchvision.models.get_model_weights(params.source).DEFAULT  # each classifier has some
    known = len(published.meta["categories"])
    if classes not in (None, known):
        raise EngineryError(
            f"weights.source: torchvision's {params.source} knows {known} classes and samples.source has {classes}; "
            "give a checkpoint of your own, or weights.source: train"
        )
    try:
        model: nn.Module = torchvision.models.get_model(params.source, weights=published, **params.arguments)
        return model.eval()
    except urllib.error.URLError as error:
        raise EngineryError(
            f"weights.source: torchvision's weights for {params.source} could not be downloaded ({error.reason}); "
            "put a checkpoint into data/weights/ and name it instead"
        ) from None
