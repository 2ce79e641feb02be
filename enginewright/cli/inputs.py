"""Find images, texts or rows of arrays for the command infer, prepare them as the engine takes them, and answer them in
batches. Each answer is printed as a line for people or as JSON."""

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.core.cores import in_parallel
from enginewright.core.errors import EnginewrightError
from enginewright.core.text import is_unicode
from enginewright.data.feeds import Feeds
from enginewright.data.preprocessing import decode, normalize, pixels_of
from enginewright.data.sample_set import TOKENIZER, PreparedTexts
from enginewright.data.sources.arrays import read_arrays
from enginewright.data.sources.files import IMAGE_SUFFIXES, is_image
from enginewright.data.sources.tables import ONE, SUFFIXES, TWO, read_rows, text_in
from enginewright.data.texts import Text, TextReader
from enginewright.engine.engine import Engine
from enginewright.engine.record import EngineRecord
from enginewright.tasks.choose import task_of
from enginewright.tasks.task import Shown, Task

LONGEST_NAME = 4096  # of a file
PICTURES = {".jpg", ".jpeg", ".png"}  # what is written; images of other types become .png
QUALITY = 92  # of JPEG


def lines_of_standard_input() -> list[str]:
    """Return the lines that are not empty of what `-` stands for among images and texts."""
    try:
        content = sys.stdin.read() if sys.stdin else ""  # it may be closed, as in `<&-`
    except UnicodeDecodeError:
        raise EnginewrightError("standard input is no text in UTF-8") from None
    if not (lines := [line for line in content.split("\n") if line.strip()]):
        raise EnginewrightError("standard input, which - stands for, has no lines")
    return lines


@dataclass(frozen=True, eq=False)
class AnswerRow:
    """A sample that is a row of the arrays of a file."""

    file: Path
    number: int
    arrays: Mapping[str, NDArray[np.generic]]


class Reply(NamedTuple):
    """The answer for one image, text or row, or the error that prevented it."""

    given: Path | Text | AnswerRow
    shown: Shown | None
    error: str | None
    picture: Image.Image | None = None  # with the answer drawn onto it


def print_answer(answer: Reply, width: int, as_line: bool) -> None:
    if as_line:
        print(_as_json(answer), flush=True)
    elif answer.shown is None:
        print(answer.error, file=sys.stderr)
    else:
        written = as_written(answer.given)
        if isinstance(answer.given, tuple) and len(written) > width:
            written = f"{written[: width - 1]}…"
        print(f"{written:<{width}}   {answer.shown.text}", flush=True)


def as_written(given: Path | Text | AnswerRow) -> str:
    if isinstance(given, AnswerRow):
        return f"{given.file}, row {given.number}"
    return str(given) if isinstance(given, Path) else " | ".join(" ".join(text.split()) for text in given)


def _as_json(answer: Reply) -> str:
    found = answer.shown.fields if answer.shown else {"error": answer.error}
    if isinstance(answer.given, Path):
        return json.dumps({"image": str(answer.given), **found})
    if isinstance(answer.given, AnswerRow):
        return json.dumps({"file": str(answer.given.file), "row": answer.given.number, **found})
    text = answer.given[0] if len(answer.given) == 1 else list(answer.given)
    return json.dumps({"text": text, **found}, ensure_ascii=False)


def require_readable(record: EngineRecord, folder: Path) -> Task:
    """Return the task of the engine, if it can read one of its outputs."""
    inputs, outputs = record.interface.sampled, record.interface.outputs
    task = task_of(record.task, record.scores, record.class_names, record.boxes, record.preprocessing)
    if (len(inputs) != 1 and record.preprocessing) or task.reads({spec.name: spec.shape for spec in outputs}) is None:
        tensors = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in (*inputs, *outputs))
        raise EnginewrightError(
            f"{folder} has no answers to show: its task, {record.task}, needs an output that it can read, and for "
            f"images one input, and it has {tensors}"
        )
    return task


class Reader:
    """An engine whose outputs its task reads."""

    cut = 0  # samples that were longer than the engine reads

    def __init__(self, engine: Engine, folder: Path) -> None:
        self._engine, self._task = engine, require_readable(engine.record, folder)

    def _shown(self, feeds: Feeds, top: int) -> Iterator[Shown]:
        """Return the answers. Too few samples are filled up with copies, whose outputs are dropped. Inputs that hold
        sizes get those that the engine is tuned for."""
        record, count = self._engine.record, len(next(iter(feeds.values())))
        filled = max(count, record.profile.batch.min)
        given = {name: np.resize(array, (filled, *array.shape[1:])) for name, array in feeds.items()}
        outputs = self._engine.run(given | record.interface.holding(record.profile.at("opt")))
        found = {name: each[:count] for name, each in outputs.items()}
        if not all(np.isfinite(each).all() for each in found.values()):
            raise EnginewrightError("the engine's outputs are not all finite: `dvc repro` validates it, and says more")
        return iter(self._task.show(found, top))


class ArraysReader(Reader):
    def answer(self, rows: Sequence[AnswerRow], top: int, draws: bool = False) -> Iterator[Reply]:
        names = [spec.name for spec in self._engine.record.interface.sampled]
        feeds = {name: np.stack([row.arrays[name][row.number] for row in rows]) for name in names}
        yield from (Reply(row, one, None) for row, one in zip(rows, self._shown(feeds, top), strict=True))


class TextsReader(Reader):
    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine, folder)
        assert engine.record.text, "the caller looked"
        self._reader = TextReader(folder / TOKENIZER, engine.record.text.how)

    def answer(self, texts: Sequence[Text], top: int, draws: bool = False) -> Iterator[Reply]:
        tokens = self._reader.tokens(texts)
        self.cut += sum(each.cut for each in tokens)
        shown = self._shown(self._reader.arrays(tokens), top)
        yield from (Reply(text, one, None) for text, one in zip(texts, shown, strict=True))


class ImageReader(Reader):
    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine, folder)
        assert engine.record.preprocessing, "the caller looked"
        self.how = engine.record.preprocessing

    def answer(self, images: Sequence[Path], top: int, draws: bool = False) -> Iterator[Reply]:
        """Answer for one batch, in the order given. An image that cannot be read is left out of the batch."""
        read = list(in_parallel(self._read, images))
        readable = [one[0] for one in read if not isinstance(one, str)]
        (spec,) = self._engine.record.interface.sampled
        shown = self._shown({spec.name: np.stack(readable)}, top) if readable else iter(())
        for path, one in zip(images, read, strict=True):
            if isinstance(one, str):
                yield Reply(path, None, one)
                continue
            answer = self._task.in_image(next(shown), self.how, one[1].size)
            yield Reply(path, answer, None, self._task.draw(one[1], answer) if draws else None)

    def _read(self, path: Path) -> tuple[NDArray[np.float32], Image.Image] | str:
        """Return an image as the model takes it, and as it is; or why it cannot be read."""
        try:
            image = decode(path)
        except EnginewrightError as error:
            return str(error)
        try:
            return normalize(pixels_of(image, self.how), self.how), image
        except EnginewrightError as error:
            return f"{path}: {error}"


def find_rows(places: Sequence[Path], inputs: Sequence[str]) -> list[AnswerRow]:
    """Return the rows of all files, in which the arrays have the names of the inputs."""
    found: list[AnswerRow] = []
    for place in places:
        arrays = _arrays_of(place, inputs)
        if found and (other := _shapes(found[0].arrays)) != _shapes(arrays):
            raise EnginewrightError(
                f"a row of {place} is {_shapes(arrays)}, and one of {found[0].file} is {other}: ask for one at a time"
            )
        found += [AnswerRow(place, number, arrays) for number in range(len(arrays[inputs[0]]))]
    return found


def _arrays_of(place: Path, inputs: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    wanted = ", ".join(inputs)
    if place.suffix != ".npz":
        raise EnginewrightError(f"{place} is no .npz: the engine takes arrays, one for each input ({wanted})")
    try:
        held = read_arrays(place)
    except EnginewrightError as error:
        raise EnginewrightError(str(error).removeprefix("samples.source: ")) from None
    if not held.keys() >= set(inputs):
        raise EnginewrightError(
            f"{place} needs an array for each input ({wanted}), and has {', '.join(held) or 'none'}"
        )
    arrays = {name: held[name].astype(held[name].dtype.newbyteorder("="), copy=False) for name in inputs}
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if 0 in lengths or len(lengths) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise EnginewrightError(
            f"{place} has {shapes}: each array needs the rows along its first axis, as many as others"
        )
    return arrays


def _shapes(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    return ", ".join(f"{name} {array.shape[1:]}" for name, array in arrays.items())


def best_first(answers: Iterable[Reply]) -> list[Reply]:
    """Sort scores of pairs: the answers to each question by their score, the questions as they came."""
    first: dict[str, int] = {}  # where each question comes first

    def order(numbered: tuple[int, Reply]) -> tuple[int, float]:
        place, answer = numbered
        assert isinstance(answer.given, tuple), "these are texts"
        assert answer.shown, "which can all be read"
        return first.setdefault(answer.given[0], place), -float(answer.shown.fields["score"])

    return [answer for _, answer in sorted(enumerate(answers), key=order)]


def find_texts(places: Sequence[str], prepared: PreparedTexts) -> list[Text]:
    """Return the texts that are given: in files, in the lines of standard input for `-`, and as they stand."""
    found: list[Text] = []
    for place in places:
        file = Path(place) if len(place) < LONGEST_NAME else None
        if place == "-":
            found += [_one_input(line, prepared.together) for line in lines_of_standard_input()]
        elif file and file.suffix in SUFFIXES and file.is_file():
            found += _of_samples(file, prepared.together)
        else:
            found.append(_one_input(place, prepared.together))
    return found


def _one_input(text: str, together: int) -> Text:
    """Return a text, or the two that a tab divides if the model reads two as one input."""
    if not is_unicode(text):
        raise EnginewrightError(f"{text!r} is no text in UTF-8")
    if not text.strip():
        raise EnginewrightError("one of the texts is empty: leave it out")
    parts = tuple(text.split("\t")) if together > 1 else (text,)
    if len(parts) != together or not all(part.strip() for part in parts):
        raise EnginewrightError(
            f"the model reads {together} texts as one input, with a tab between them, and not {text!r}"
        )
    return parts


def _of_samples(file: Path, together: int) -> list[Text]:
    columns, rows = read_rows(file)
    used = TWO if TWO[0] in columns else ONE
    texts = [tuple(text_in(file, row, column) for column in used) for row in rows]
    if len(used) < together:
        return [_one_input(text[0], together) for text in texts]
    return list(texts) if len(used) == together else [(part,) for text in texts for part in text]


def find_images(places: Sequence[Path]) -> list[Path]:
    """Return the given files, those that the lines of standard input name for `-`, and all images below folders."""

    def refuse(error: OSError) -> None:
        raise error

    found: list[Path] = []
    listed = (map(Path, lines_of_standard_input()) if place == Path("-") else (place,) for place in places)
    for place in chain.from_iterable(listed):
        if not place.is_dir():
            found.append(place)
            continue
        files = (Path(root) / name for root, _, names in os.walk(place, onerror=refuse) for name in names)
        inside = sorted(filter(is_image, files))
        if not inside:
            raise EnginewrightError(f"{place} holds no images: looked for {', '.join(sorted(IMAGE_SUFFIXES))}")
        found += inside
    return found


def picture_files(images: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return where each image with its answer goes: to its name, below the folders in which the images differ."""
    absolute = [Path(os.path.abspath(image)) for image in images]
    common = Path(os.path.commonpath([path.parent for path in absolute]))
    given = {path.resolve() for path in absolute}
    found: dict[Path, Path] = {}
    for image, path in zip(images, absolute, strict=True):
        name = path.relative_to(common)
        found[image] = folder / (name if name.suffix.lower() in PICTURES else name.with_name(f"{name.name}.png"))
        if found[image].resolve() in given:
            raise EnginewrightError(f"--pictures {folder} holds the images themselves: give another folder")
    return found
