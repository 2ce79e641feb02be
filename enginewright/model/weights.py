"""Obtain the weights: train them, or take torchvision's, the user's checkpoint, or those that the model brings.

Training gives a fresh clone a model of real accuracy without a download."""

import inspect
import pickle
import urllib.error
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torchvision
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.model import ModelParams, TrainingParams, WeightsParams
from enginewright.core.progress import progress
from enginewright.core.text import first_line
from enginewright.core.user_files import user_checkpoint
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.model.checkpoint import State, apply_weights, not_finite, read_checkpoint, require_finite
from enginewright.model.factory import as_graph, detector_names, make_from_timm, make_model, with_usual_epsilon
from enginewright.model.from_transformers import load_from_transformers
from enginewright.model.source_model import Misfit, require_runs, run_model

READ_AT_ONCE = 32
HEAD_STEPS = 200


def train(model: nn.Module, samples: SampleSet, params: TrainingParams) -> None:
    """Train by AdamW with a one-cycle schedule: a ResNet-18 learns the digits to about 99 % in four epochs. Afterwards
    BatchNorm's statistics and the last layer are fitted again. The statistics lag behind the weights by many steps
    where a model averages slowly: MobileNetV3 answers at random without this. Training on smaller images is cheaper by
    the square, and leaves both wrong by the difference in scale."""
    model.to(memory_format=torch.channels_last)  # a third faster on a CPU
    if params.epochs:
        train_all_layers(model, samples, params)
    _fit_statistics_and_last_layer(model, samples)  # on a CPU, since a GPU would round to fewer bits
    model.to(memory_format=torch.contiguous_format).eval()


def train_all_layers(model: nn.Module, samples: SampleSet, params: TrainingParams) -> None:
    device = usable_device(params.device)
    labels = known_labels(samples).to(device)
    batches = len(samples) // params.batch
    if batches == 0:
        raise EnginewrightError(
            f"weights.training.batch is {params.batch}, but there are {len(samples)} training samples"
        )
    model.to(device)
    total, rate = params.epochs * batches, params.learning_rate
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=rate, total_steps=total)
    model.train()
    model.training = False  # not the whole: GoogLeNet and Inception would add auxiliary outputs
    shuffled = (torch.randperm(len(samples)) for _ in range(params.epochs))
    steps = (indices for order in shuffled for indices in order[: batches * params.batch].split(params.batch))
    for indices in progress(steps, "training", total, "batches"):  # whole ones: of one, BatchNorm cannot learn
        images = _images(samples.read_at(indices.numpy())).to(device)
        height, width = images.shape[2:]
        if params.size != (shorter := min(height, width)):
            smaller = (height * params.size // shorter, width * params.size // shorter)
            images = nn.functional.interpolate(images, size=smaller, mode="area")
        logits = model(images.contiguous(memory_format=torch.channels_last))
        if not isinstance(logits, torch.Tensor):
            raise EnginewrightError("weights.source: train: this model has several outputs; give a checkpoint")
        loss = nn.functional.cross_entropy(logits, labels[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.to("cpu")


def usable_device(name: str) -> torch.device:
    """Return the device if it can compute, since a GPU may be there and too old for this PyTorch."""
    try:
        return torch.ones(1, device=name).add(1).device
    except (RuntimeError, AssertionError) as error:  # a PyTorch without CUDA raises AssertionError
        raise EnginewrightError(
            f"weights.training.device: PyTorch cannot use {name} here: {first_line(error)}"
        ) from None


def _fit_statistics_and_last_layer(model: nn.Module, samples: SampleSet) -> None:
    """Fit BatchNorm's statistics, then the last layer, in one forward pass each over images of their own size."""
    head = last_layer(model)
    if average_statistics_anew(model):
        _run_over(model, samples, "fitting statistics")
    model.eval()
    features: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    _run_over(model, samples, "fitting the last layer")
    hook.remove()
    inputs, labels = torch.cat(features), known_labels(samples)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-2)
    for _ in range(HEAD_STEPS):  # of logistic regression, from the trained weights on
        optimizer.zero_grad()
        logits = head(inputs)
        logits = logits.mean((2, 3)) if logits.ndim == 4 else logits  # a convolution has logits at each pixel
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()


def batch_norms(model: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]


def average_statistics_anew(model: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d]:
    """Let BatchNorm alone learn, a plain average over all batches that the model is given next. Return its layers."""
    model.eval()  # without dropout and auxiliary outputs
    norms = batch_norms(model)
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain average
        norm.train()
    return norms


def _run_over(model: nn.Module, samples: SampleSet, label: str) -> None:
    with torch.no_grad():
        for feeds in progress(samples.batches(READ_AT_ONCE), label, -(-len(samples) // READ_AT_ONCE), "batches"):
            model(_images(feeds).contiguous(memory_format=torch.channels_last))


def last_layer(model: nn.Module) -> nn.Linear | nn.Conv2d:
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    if not layers:
        raise EnginewrightError(
            "weights.training: this model has no linear layer or convolution to fit; set size to crop, epochs above 0"
        )
    return layers[-1]


def known_labels(samples: SampleSet) -> torch.Tensor:
    if (labels := samples.labels) is None:
        raise EnginewrightError(
            "weights.source: train needs images with labels, and samples.source has none; give weights"
        )
    return torch.from_numpy(labels)


def _images(feeds: Feeds) -> torch.Tensor:
    (images,) = feeds.values()
    return torch.from_numpy(images)


def obtain_model(
    params: ModelParams, weights: WeightsParams, training: SampleSet, data: Path, folder: Path | None, misfit: Misfit
) -> tuple[nn.Module, int | None]:
    """Return the model with its weights, and its number of classes, which the samples or else the weights tell.
    `folder` is that of a model of transformers, whose configuration is in the arguments, and `misfit` says how outputs
    of the first samples do not fit the task, before it is trained."""
    classes = training.classes or None
    if weights.source == "train":
        torch.manual_seed(weights.training.seed)
        model = make_model(params, classes)
        require_runs(partial(run_model, model), training.cycled(2), training, misfit)
        by_design = not_finite(model.state_dict())
        train(model, training, weights.training)
        require_finite(model.state_dict(), Path("the trained model"), by_design)
        return model, classes
    if weights.source == "pretrained":
        return make_from_timm(params, classes, True) if params.library else _pretrained(params, classes), classes
    if weights.source == "given" and folder:
        return load_from_transformers(params.arguments, folder), classes
    if weights.source == "given":
        return make_model(params, classes), classes
    checkpoint = user_checkpoint(weights.source, data)
    state = read_checkpoint(checkpoint)
    makes_own = params.is_factory or params.library == "transformers"
    if not makes_own and params.source not in detector_names():  # others have the number in their own arguments
        classes = classes or _classes_of(state)
    model = make_model(params, classes)
    apply_weights(model, state, checkpoint, 0 if makes_own else training.classes)
    return model, classes


def _classes_of(state: State) -> int | None:
    """Return the length of the last tensor that is not a single number, since that is the last layer's."""
    return next((len(value) for value in reversed(state.values()) if value.ndim), None)


def _pretrained(params: ModelParams, classes: int | None) -> nn.Module:
    plain = make_model(params, classes)  # refuses a misspelt name
    published = torchvision.models.get_model_weights(params.source).DEFAULT  # each classifier has published weights
    is_detector = params.source in detector_names()
    known = len(published.meta["categories"]) - is_detector  # the background is no class
    if classes not in (None, known):
        raise EnginewrightError(
            f"weights.source: torchvision's {params.source} knows {known} classes and samples.source has {classes}: "
            "list all of its classes under samples.class_names, give a checkpoint of your own, or weights.source: train"
        )
    published.get_state_dict = lambda **_: _published_state(published)
    try:
        model: nn.Module = torchvision.models.get_model(params.source, weights=published, **params.arguments)
    except ValueError as error:
        raise EnginewrightError(
            f"model.arguments: torchvision's {params.source} refuses them with its published weights: {error}"
        ) from None
    except urllib.error.URLError as error:
        raise EnginewrightError(
            f"weights.source: torchvision's weights for {params.source} could not be downloaded ({error.reason}); "
            "put a checkpoint into data/weights/ and name it instead"
        ) from None
    finally:
        del published.get_state_dict
    if implied := _implied_arguments(plain, model):
        arguments = ", ".join(f"{name}: {str(value).lower()}" for name, value in implied.items())
        raise EnginewrightError(
            f"model.arguments: torchvision makes another {params.source} for its published weights; say so, with "
            f"{{{arguments}}}"
        )
    return (as_graph(with_usual_epsilon(model)) if is_detector else model).eval()


def _published_state(published: Any) -> State:
    """Check the file's hash and load tensors only; torchvision itself does neither with a file that is there."""
    file = Path(torch.hub.get_dir()) / "checkpoints" / published.url.rpartition("/")[2]
    if file.exists() and not sha256(file).startswith(file.stem.rpartition("-")[2]):
        why = f"{file} is not what torchvision published: delete it, and it is downloaded again"
        raise EnginewrightError(f"weights.source: {why}")
    try:
        return cast(State, type(published).get_state_dict(published, check_hash=True, weights_only=True))
    except (RuntimeError, pickle.UnpicklingError) as error:
        raise EnginewrightError(
            f"weights.source: {published.url} did not bring what torchvision published: {first_line(error)}"
        ) from None


def _implied_arguments(plain: nn.Module, published: nn.Module) -> dict[str, object]:
    """Return arguments that torchvision sets for the weights, without which they compute something else. Inception's
    transform_input is an example."""
    arguments = inspect.signature(type(plain).__init__).parameters
    simple = {name: getattr(published, name) for name in arguments if isinstance(getattr(published, name, None), int)}
    return {name: value for name, value in simple.items() if getattr(plain, name, None) != value}
