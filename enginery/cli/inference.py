"""Answer for images with an engine, as its task answers: classes and their probabilities, boxes, areas, numbers."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginery import open_engine
from enginery.core.cores import in_parallel
from enginery.core.errors import EngineryError
from enginery.core.params.preprocessing import Preprocessing
from enginery.core.progress import progress
from enginery.data.feeds import Outputs
from enginery.data.preprocessing import decode, normalize, pixels_of
from enginery.data.sources.files import IMAGE_SUFFIXES
from enginery.engine.engine import Engine
from enginery.engine.folder import require_engine
from enginery.engine.record import EngineRecord
from enginery.tasks.choose import task_of
from enginery.tasks.task import Shown, Task

Tensor = NDArray[np.float32]
PICTURES = {".jpg", ".jpeg", ".png"}  # what is written; images of other types become .png
QUALITY = 92  # of JPEG


class Answer(NamedTuple):
    """The answer for one image, or the error that prevented it."""

    image: Path
    shown: Shown | None
    error: str | None
    picture: Image.Image | None = None  # with the answer drawn onto it


class Read(NamedTuple):
    """An image as the model takes it, and as it is."""

    tensor: Tensor
    image: Image.Image


def infer(
    folder: Path,
    places: Sequence[Path],
    top: int,
    batch: int | None,
    threads: int,
    as_lines: bool,
    pictures: Path | None = None,
) -> int:
    """Print the answer for each image, and return how many images could not be read. Draw each answer onto a copy of
    its image in the folder `pictures`."""
    require_engine(folder)  # before the images: if the two are swapped, the message should be about the engine
    images = find_images(places)
    drawn = picture_files(images, pictures) if pictures else {}
    width = max(len(str(image)) for image in images)
    unread = 0
    with open_engine(folder, threads) as engine:
        reader = Reader(engine, folder)
        size = batch_size(engine.record, batch)
        batches = [images[start : start + size] for start in range(0, len(images), size)]
        for answer in (answer for few in _with_bar(batches) for answer in reader.answer(few, top, bool(drawn))):
            unread += answer.error is not None
            print_answer(answer, width, as_lines)
            if answer.picture:
                save_picture(answer.picture, drawn[answer.image])
    if unread:
        print(f"could not be read: {unread} of {len(images)} images", file=sys.stderr)
    return unread


def _with_bar(batches: list[list[Path]]) -> Iterable[list[Path]]:
    """Show a progress bar, unless it would come between the lines of the answers."""
    drawn = sys.stderr.isatty() and not sys.stdout.isatty()
    return progress(batches, "images", len(batches), "batches") if drawn else batches


class Reader:
    """An engine that takes images, whose outputs its task reads."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine = engine
        self.how = required_preprocessing(engine.record, folder)
        self._task = require_readable(engine.record, folder)

    def answer(self, images: Sequence[Path], top: int, draws: bool = False) -> Iterator[Answer]:
        """Answer for one batch, in the order given. An image that cannot be read is left out of the batch."""
        read = list(in_parallel(self._read, images))
        readable = [one.tensor for one in read if not isinstance(one, str)]
        shown = self._task.show(self._outputs(np.stack(readable)), top) if readable else iter(())
        for path, one in zip(images, read, strict=True):
            if isinstance(one, str):
                yield Answer(path, None, one)
                continue
            answer = self._task.in_image(next(shown), self.how, one.image.size)
            yield Answer(path, answer, None, self._task.draw(one.image, answer) if draws else None)

    def _read(self, path: Path) -> Read | str:
        try:
            image = decode(path)
        except EngineryError as error:
            return str(error)
        try:
            return Read(normalize(pixels_of(image, self.how), self.how), image)
        except EngineryError as error:
            return f"{path}: {error}"

    def _outputs(self, images: Tensor) -> Outputs:
        """Return the outputs. Too few images for the engine are filled up with copies, whose outputs are dropped."""
        filled = np.resize(images, (max(len(images), self._engine.record.profile.batch.min), *images.shape[1:]))
        (spec,) = self._engine.record.interface.inputs
        outputs = {name: each[: len(images)] for name, each in self._engine.run({spec.name: filled}).items()}
        if not all(np.isfinite(each).all() for each in outputs.values()):
            raise EngineryError("the engine's outputs are not all finite: `dvc repro` validates it, and says more")
        return outputs


def required_preprocessing(record: EngineRecord, folder: Path) -> Preprocessing:
    if record.preprocessing is None:
        raise EngineryError(f"{folder} takes tensors, not images: feed it with enginery.open_engine from Python")
    return record.preprocessing


def require_readable(record: EngineRecord, folder: Path) -> Task:
    """Return the task of the engine, if it can read one of its outputs."""
    inputs, outputs = record.interface.inputs, record.interface.outputs
    task = task_of(record.task, record.scores, record.class_names, record.boxes, record.preprocessing)
    if len(inputs) != 1 or task.reads({spec.name: spec.shape for spec in outputs}) is None:
        tensors = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (*inputs, *outputs))
        raise EngineryError(
            f"{folder} has no answers for images: its task, {record.task}, needs one input and an output that it can "
            f"read, and it has {tensors}"
        )
    return task


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


def picture_files(images: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return where each image with its answer goes: to its name, below the folders in which the images differ."""
    absolute = [Path(os.path.abspath(image)) for image in images]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    found = {}
    for image, path in zip(images, absolute, strict=True):
        name = path.relative_to(common)
        found[image] = folder / (name if name.suffix.lower() in PICTURES else name.with_name(f"{name.name}.png"))
        if found[image].resolve() == path.resolve():
            raise EngineryError(f"--pictures {folder} holds the images themselves: give another folder")
    return found


def save_picture(picture: Image.Image, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    picture.save(file, quality=QUALITY)


def print_answer(answer: Answer, width: int, as_line: bool) -> None:
    if as_line:
        print(as_json(answer), flush=True)
    elif answer.shown is None:
        print(answer.error, file=sys.stderr)
    else:
        print(f"{answer.image!s:<{width}}   {answer.shown.text}", flush=True)


def as_json(answer: Answer) -> str:
    found = answer.shown.fields if answer.shown else {"error": answer.error}
    return json.dumps({"image": str(answer.image), **found})
