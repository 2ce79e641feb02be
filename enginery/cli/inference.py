"""Classify images with an engine: the most likely classes of each, with their probabilities."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginery import open_engine
from enginery.core.cores import in_parallel
from enginery.core.errors import EngineryError
from enginery.core.params.preprocessing import Preprocessing
from enginery.core.progress import progress
from enginery.data.feeds import scores_among
from enginery.data.preprocessing import prepare
from enginery.data.sources.files import IMAGE_SUFFIXES
from enginery.engine.engine import Engine
from enginery.engine.folder import require_engine
from enginery.engine.record import EngineRecord

Tensor = NDArray[np.float32]
ROUNDING = 0.02  # probabilities in few bits may miss a sum of 1 by this much


class Guess(NamedTuple):
    name: str
    number: int
    probability: float


class Answer(NamedTuple):
    """The answer for one image: guesses, the best one first, or the error that prevented them."""

    image: Path
    guesses: tuple[Guess, ...]
    error: str | None


def infer(folder: Path, places: Sequence[Path], top: int, batch: int | None, threads: int, as_lines: bool) -> int:
    """Print the likeliest classes of each image, and return how many images could not be read."""
    require_engine(folder)  # before the images: if the two are swapped, the message should be about the engine
    images = find_images(places)
    width = max(len(str(image)) for image in images)
    unread = 0
    with open_engine(folder, threads) as engine:
        classifier = Classifier(engine, folder)
        size = batch_size(engine.record, batch)
        batches = [images[start : start + size] for start in range(0, len(images), size)]
        for answer in (answer for few in _with_bar(batches) for answer in classifier.answer(few, top)):
            unread += answer.error is not None
            print_answer(answer, width, as_lines)
    if unread:
        print(f"could not be read: {unread} of {len(images)} images", file=sys.stderr)
    return unread


def _with_bar(batches: list[list[Path]]) -> Iterable[list[Path]]:
    """Show a progress bar, unless it would come between the lines of the answers."""
    drawn = sys.stderr.isatty() and not sys.stdout.isatty()
    return progress(batches, "images", len(batches), "batches") if drawn else batches


class Classifier:
    """An engine that takes images and gives a score per class."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self.how = required_preprocessing(engine.record, folder)
        self._output = require_classifier(engine.record, folder)
        self._names = engine.record.class_names

    def answer(self, images: Sequence[Path], top: int) -> Iterator[Answer]:
        """Answer for one batch, in the order given. An image that cannot be read is left out of the batch."""
        read = list(in_parallel(self._read, images))
        readable = [tensor for tensor in read if not isinstance(tensor, str)]
        scores = iter(self._scores(np.stack(readable)) if readable else ())
        for image, tensor in zip(images, read, strict=True):
            if isinstance(tensor, str):
                yield Answer(image, (), tensor)
            else:
                yield Answer(image, best(next(scores), self._names, top), None)

    def _read(self, image: Path) -> Tensor | str:
        try:
            return prepare(image, self.how)
        except EngineryError as error:
            return str(error)

    def _scores(self, images: Tensor) -> Tensor:
        """Return the scores. Too few images for the engine are filled up with copies, whose scores are dropped."""
        filled = np.resize(images, (max(len(images), self._engine.record.profile.batch.min), *images.shape[1:]))
        (spec,) = self._engine.record.interface.inputs
        logits = self._engine.run({spec.name: filled})[self._output]
        scores = logits[: len(images)].astype(np.float32)
        if not np.isfinite(scores).all():
            raise EngineryError("the engine's scores are not all finite: `dvc repro` validates it, and says more")
        return scores


def required_preprocessing(record: EngineRecord, folder: Path) -> Preprocessing:
    if record.preprocessing is None:
        raise EngineryError(f"{folder} takes tensors, not images: feed it with enginery.open_engine from Python")
    return record.preprocessing


def require_classifier(record: EngineRecord, folder: Path) -> str:
    """Return the output that holds the scores, as validation finds it."""
    inputs, outputs = record.interface.inputs, record.interface.outputs
    scores = scores_among({spec.name: spec.shape for spec in outputs}, len(record.class_names), record.scores)
    if len(inputs) != 1 or scores is None:
        tensors = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (*inputs, *outputs))
        raise EngineryError(f"{folder} is no classifier of images, one input and a score per class: it has {tensors}")
    return scores


def batch_size(record: EngineRecord, asked: int | None) -> int:
    """Return the batch size that was asked for, or the largest that the engine takes."""
    largest = record.profile.batch.max
    if asked is not None and asked > largest:
        raise EngineryError(
            f"--batch {asked} is more than the engine takes: {largest}, build.profile.batch in params.yaml"
        )
    return asked or largest


def find_images(places: Sequence[Path]) -> list[Path]:
    """Return the given files, and all images in and below the given folders."""
    found: list[Path] = []
    for place in places:
        if not place.is_dir():
            found.append(place)
            continue
        inside = sorted(path for path in _files_below(place) if _is_image(path))
        if not inside:
            raise EngineryError(f"{place} holds no images: looked for {', '.join(sorted(IMAGE_SUFFIXES))}")
        found += inside
    return found


def _is_image(path: Path) -> bool:
    """Tell by its name whether a file is an image. Some systems put a file with a leading dot beside each photo."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def _files_below(folder: Path) -> Iterator[Path]:
    def refuse(error: OSError) -> None:
        raise error

    for root, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(root) / name for name in names)


def best(scores: NDArray[np.float32], names: Sequence[str], top: int) -> tuple[Guess, ...]:
    """Return the best classes. Of equal scores the first one wins, as in validation."""
    probabilities = probabilities_of(scores.astype(np.float64))
    order = np.argsort(-scores, kind="stable")[:top]
    known = dict(enumerate(names))  # a model may know more classes than the samples have names for
    return tuple(Guess(known.get(i, f"class {i}"), i, float(probabilities[i])) for i in map(int, order))


def probabilities_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probabilities of logits. A model that ends in a softmax gives probabilities itself."""
    if scores.min() >= 0 and abs(scores.sum() - 1) < ROUNDING:
        return scores
    exponents = np.exp(scores - scores.max())
    return exponents / exponents.sum()  # type: ignore[no-any-return]


def print_answer(answer: Answer, width: int, as_line: bool) -> None:
    if as_line:
        print(as_json(answer), flush=True)
    elif answer.error:
        print(answer.error, file=sys.stderr)
    else:
        guesses = "   ".join(f"{guess.name} {guess.probability:.1%}" for guess in answer.guesses)
        print(f"{answer.image!s:<{width}}   {guesses}", flush=True)


def as_json(answer: Answer) -> str:
    if answer.error:
        return json.dumps({"image": str(answer.image), "error": answer.error})
    top = [{"class": one.name, "index": one.number, "probability": round(one.probability, 6)} for one in answer.guesses]
    return json.dumps({"image": str(answer.image), "top": top})
