"""Answer for images or texts with an engine, as its task answers: classes and their probabilities, boxes, numbers."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginery import open_engine
from enginery.core.cores import in_parallel
from enginery.core.errors import EngineryError
from enginery.core.params.preprocessing import Preprocessing
from enginery.core.progress import progress
from enginery.data.feeds import Feeds, Outputs
from enginery.data.manifest import PreparedTexts
from enginery.data.preprocessing import decode, normalize, pixels_of
from enginery.data.sample_set import TOKENIZER
from enginery.data.sources.files import IMAGE_SUFFIXES
from enginery.data.sources.text_table import ONE, SUFFIXES, TWO, read_rows, rows_in, text_in
from enginery.data.texts import Text, TextReader
from enginery.engine.engine import Engine
from enginery.engine.folder import read_engine, require_engine
from enginery.engine.record import EngineRecord
from enginery.tasks.choose import task_of
from enginery.tasks.task import Shown, Task

Tensor = NDArray[np.float32]
PICTURES = {".jpg", ".jpeg", ".png"}  # what is written; images of other types become .png
QUALITY = 92  # of JPEG
WIDEST = 60  # of a column of texts, in a line for people
LONGEST_NAME = 4096  # of a file


class Answer(NamedTuple):
    """The answer for one image or text, or the error that prevented it."""

    given: Path | Text
    shown: Shown | None
    error: str | None
    picture: Image.Image | None = None  # with the answer drawn onto it


class Read(NamedTuple):
    """An image as the model takes it, and as it is."""

    tensor: Tensor
    image: Image.Image


def infer(
    folder: Path,
    places: Sequence[str | Path],
    top: int,
    batch: int | None,
    threads: int,
    as_lines: bool,
    pictures: Path | None = None,
) -> int:
    """Print the answer for each image or text, and return how many could not be read. Draw each answer onto a copy of
    its image in the folder `pictures`."""
    require_engine(folder)  # before the images: if the two are swapped, the message should be about the engine
    text = read_engine(folder).text
    if text and pictures:
        raise EngineryError(f"--pictures is for images, and {folder} takes texts")
    images = [] if text else find_images(list(map(Path, places)))
    found = find_texts(list(map(str, places)), text) if text else images
    drawn: Mapping[Path | Text, Path] = picture_files(images, pictures) if pictures else {}
    width = max(len(_as_written(each)) for each in found)
    unread = 0
    with open_engine(folder, threads) as engine:
        reader = TextsReader(engine, folder) if text else Reader(engine, folder)
        size = batch_size(engine.record, batch)
        batches = [found[start : start + size] for start in range(0, len(found), size)]
        for answer in (answer for few in _with_bar(batches) for answer in reader.answer(few, top, bool(drawn))):
            unread += answer.error is not None
            print_answer(answer, min(width, WIDEST) if text else width, as_lines)
            if answer.picture:
                save_picture(answer.picture, drawn[answer.given])
        if cut := getattr(reader, "cut", 0):
            print(f"longer than the model reads, and cut: {cut} of {len(found)} texts", file=sys.stderr)
    if unread:
        print(f"could not be read: {unread} of {len(found)} images", file=sys.stderr)
    return unread


def _with_bar(batches: list[Any]) -> Iterable[Any]:
    """Show a progress bar, unless it would come between the lines of the answers."""
    drawn = sys.stderr.isatty() and not sys.stdout.isatty()
    return progress(batches, "samples", len(batches), "batches") if drawn else batches


class TextsReader:
    """An engine that takes texts, whose outputs its task reads."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        prepared = engine.record.text
        assert prepared, "the caller looked"
        self._engine, self._task = engine, require_readable(engine.record, folder)
        self._reader, self.cut = TextReader(folder / TOKENIZER, prepared.how), 0

    def answer(self, texts: Sequence[Text], top: int, draws: bool = False) -> Iterator[Answer]:
        tokens = self._reader.tokens(texts)
        self.cut += sum(each.cut for each in tokens)
        shown = self._task.show(run_filled(self._engine, self._reader.arrays(tokens)), top)
        yield from (Answer(text, one, None) for text, one in zip(texts, shown, strict=True))


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
        (spec,) = self._engine.record.interface.inputs
        feeds = {spec.name: np.stack(readable)} if readable else {}
        shown = self._task.show(run_filled(self._engine, feeds), top) if readable else iter(())
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


def run_filled(engine: Engine, feeds: Feeds) -> Outputs:
    """Return the outputs. Too few samples for the engine are filled up with copies, whose outputs are dropped."""
    count, least = len(next(iter(feeds.values()))), engine.record.profile.batch.min
    filled = {name: np.resize(array, (max(count, least), *array.shape[1:])) for name, array in feeds.items()}
    outputs = {name: each[:count] for name, each in engine.run(filled).items()}
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
    if (len(inputs) != 1 and not record.text) or task.reads({spec.name: spec.shape for spec in outputs}) is None:
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


def find_texts(places: Sequence[str], prepared: PreparedTexts) -> list[Text]:
    """Return the texts that are given: in files, in the lines of standard input for `-`, and as they stand."""
    found: list[Text] = []
    for place in places:
        file = Path(place) if len(place) < LONGEST_NAME else None
        if place == "-":
            rows = rows_in(sys.stdin.read(), ".txt", "standard input")[1]
            found += [_one_input(row["text"], prepared.together) for _, row in rows]
        elif file and file.suffix in SUFFIXES and file.is_file():
            found += _of_samples(file, prepared.together)
        else:
            found.append(_one_input(place, prepared.together))
    return found


def _one_input(text: str, together: int) -> Text:
    """Return a text, or the two that a tab divides if the model reads two as one input."""
    parts = tuple(text.split("\t")) if together > 1 else (text,)
    if len(parts) != together or not all(part.strip() for part in parts):
        raise EngineryError(f"the model reads {together} texts as one input, with a tab between them, and not {text!r}")
    return parts


def _of_samples(file: Path, together: int) -> list[Text]:
    columns, rows = read_rows(file)
    used = TWO if TWO[0] in columns else ONE
    texts = [tuple(text_in(file, row, column) for column in used) for row in rows]
    if len(used) < together:
        return [_one_input(text[0], together) for text in texts]
    return list(texts) if len(used) == together else [(part,) for text in texts for part in text]


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


def picture_files(images: Sequence[Path], folder: Path) -> dict[Path | Text, Path]:
    """Return where each image with its answer goes: to its name, below the folders in which the images differ."""
    absolute = [Path(os.path.abspath(image)) for image in images]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    found: dict[Path | Text, Path] = {}
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
        written = _as_written(answer.given)
        if isinstance(answer.given, tuple) and len(written) > width:
            written = f"{written[: width - 1]}…"
        print(f"{written:<{width}}   {answer.shown.text}", flush=True)


def _as_written(given: Path | Text) -> str:
    return str(given) if isinstance(given, Path) else " | ".join(" ".join(text.split()) for text in given)


def as_json(answer: Answer) -> str:
    found = answer.shown.fields if answer.shown else {"error": answer.error}
    if isinstance(answer.given, Path):
        return json.dumps({"image": str(answer.given), **found})
    text = answer.given[0] if len(answer.given) == 1 else list(answer.given)
    return json.dumps({"text": text, **found}, ensure_ascii=False)
