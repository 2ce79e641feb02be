"""The model as the user brought it, which every graph and engine made of it is held against."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params.model import NO_SCORES
from enginery.data.feeds import Feeds, Outputs, Run, scores_among, wide_as_scores
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.check import check_at_each_size
from enginery.model.call import call_model
from enginery.model.checkpoint import load_model
from enginery.model.records import PYTORCH
from enginery.model.user_code import RAISED, users_part

SAME = 1e-5  # a sum in another order, by other threads, is another by about 1e-7
GIVEN_GRAPH = "model.onnx"  # in the weights' folder, if the model came as an ONNX file


def open_source_model(weights: Path) -> Run:
    """PyTorch's model, or the user's ONNX file as it is written."""
    given = weights / GIVEN_GRAPH
    if not given.exists():
        return partial(_answers, partial(run_model, load_model(weights)), users_part)
    try:
        session = open_as_written(given)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        raise EngineryError(f"model.source: ONNX Runtime cannot open the file: {_whole(error)}") from None
    return partial(_answers, partial(run_graph, session), _whole)


def made_by(weights: Path) -> str:
    return "ONNX Runtime" if (weights / GIVEN_GRAPH).exists() else PYTORCH


def run_model(model: nn.Module, feeds: Feeds) -> Outputs:
    """Floats of any size as float32; what is no float stays what it is, so that it is seen and refused.

    The model gets copies: its forward may write into them, and others are fed the same samples.
    """
    with torch.inference_mode():
        outputs = call_model(model, {name: torch.tensor(array) for name, array in feeds.items()})
        return {
            name: (output.float() if output.is_floating_point() else output).numpy() for name, output in outputs.items()
        }


def require_runs(run: Run, feeds: Feeds, classes: int, scores: str | None = None) -> Outputs:
    """One pass over few samples: what the model cannot take or does not return is said before hours of work."""
    samples = len(next(iter(feeds.values())))
    try:
        outputs = _answers(run, users_part, feeds)
    except EngineryError as error:
        if _takes(run, feeds, 2) or not _takes(run, feeds, 1):
            raise
        raise EngineryError(
            f"{error}\nA single sample it takes: set min, opt and max of build.profile.batch to 1"
        ) from None
    for name, output in outputs.items():
        if output.ndim == 0 or len(output) != samples or not np.issubdtype(output.dtype, np.floating):
            raise EngineryError(
                f"model.source: output {name} is {output.dtype} of shape {output.shape}; "
                f"it must be floats with the batch, here {samples}, as first axis"
            )
        if not np.isfinite(output).all():
            raise EngineryError(
                f"model.source: output {name} holds NaN or infinity: are the weights whole, and are samples prepared "
                "as the model was trained on them?"
            )
    _require_scores(outputs, classes, scores)
    return outputs


def _require_scores(outputs: Outputs, classes: int, asked: str | None) -> None:
    shapes = {name: output.shape for name, output in outputs.items()}
    if asked == NO_SCORES:
        return
    if asked and not scores_among(shapes, classes, asked):
        wanted = f"a score for each of the {classes} classes" if classes else "a score per class"
        raise EngineryError(f"model.scores: '{asked}' is no output with {wanted}: the model returns {_shapes(outputs)}")
    if classes and not any(shape[1:] == (classes,) for shape in shapes.values()):
        raise EngineryError(
            f"samples.source has {classes} classes, and no output of the model has as many: it returns "
            f"{_shapes(outputs)}. Are these the images that the model was trained on? If its outputs are no scores of "
            f"classes, set model.scores: {NO_SCORES}"
        )
    if classes and not asked and len(several := wide_as_scores(shapes, classes)) > 1:
        raise EngineryError(
            f"samples.source has {classes} classes, and outputs {', '.join(several)} of the model have as many: "
            f"name the one with their scores as model.scores, or set it to {NO_SCORES}"
        )


def require_steady(run: Run, asked: Sequence[Feeds], answered: Sequence[Outputs]) -> None:
    """A graph cannot be held against a model that rolls dice, and would be blamed for it."""
    again = [_answers(run, users_part, feeds) for feeds in asked]
    check_at_each_size(answered, again, SAME, "model.source: the model answers the same samples otherwise each time")


def _takes(run: Run, feeds: Feeds, count: int) -> bool:
    with suppress(EngineryError):
        return bool(_answers(run, users_part, {name: array[:count] for name, array in feeds.items()}))
    return False


def _answers(run: Run, why: Callable[[BaseException], str], feeds: Feeds) -> Outputs:
    try:
        return run(feeds)
    except EngineryError:
        raise
    except RAISED as error:
        raise EngineryError(f"model.source: the model fails on {_shapes(feeds)}: {why(error)}") from None


def _whole(error: BaseException) -> str:
    """ONNX Runtime says what is wrong in its last lines."""
    return " ".join(str(error).split())


def _shapes(arrays: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
