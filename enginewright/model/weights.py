"""Obtain the weights: train them, or take torchvision's, the user's checkpoint, or those that the model brings."""

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
from enginewright.core.params.model import NO_SCORES, ModelParams
from enginewright.core.params.weights import TrainingParams, WeightsParams
from enginewright.core.text import first_line
from enginewright.core.user_files import user_checkpoint
from enginewright.data.sample_set import SampleSet
from enginewright.model.call import State
from enginewright.model.checkpoint import apply_weights, not_finite, read_checkpoint, require_finite
from enginewright.model.factory import make_model
from enginewright.model.from_timm import make_from_timm
from enginewright.model.from_transformers import load_from_transformers
from enginewright.model.one_stage import as_graph, detector_names, with_usual_epsilon
from enginewright.model.source_model import require_runs, run_model
from enginewright.model.training import train


def obtain_model(
    params: ModelParams, weights: WeightsParams, training: SampleSet, data: Path, folder: Path | None = None
) -> tuple[nn.Module, int | None]:
    """Return the model with its weights, and its number of classes, which the samples or else the weights tell.
    `folder` is that of a model of transformers, whose configuration is in the arguments."""
    classes = training.classes or None
    if weights.source == "train":
        return _trained(params, weights.training, classes, training), classes
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


def _trained(params: ModelParams, how: TrainingParams, classes: int | None, training: SampleSet) -> nn.Module:
    torch.manual_seed(how.seed)
    model = make_model(params, classes)
    scores = None if params.scores == NO_SCORES else params.scores  # training needs scores even if validation does not
    require_runs(partial(run_model, model), training.cycled(2), training, scores)
    by_design = not_finite(model.state_dict())
    train(model, training, how)
    require_finite(model.state_dict(), Path("the trained model"), by_design)
    return model


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
    """Return arguments that torchvision sets for the weights, without which they compute something else.

    Inception's transform_input is an example.
    """
    arguments = inspect.signature(type(plain).__init__).parameters
    simple = {name: getattr(published, name) for name in arguments if isinstance(getattr(published, name, None), int)}
    return {name: value for name, value in simple.items() if getattr(plain, name, None) != value}
