"""`enginewright infer`: answer for images, texts or arrays with an engine, as its task answers."""

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.cli.arguments import FILE, FOLDER, add_engine, add_path
from enginewright.core.cores import in_parallel
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import InferenceParams
from enginewright.core.progress import progress
from enginewright.core.text import is_unicode
from enginewright.data.feeds import Feeds
from enginewright.data.preprocessing import as_fed, decode, pixels_of
from enginewright.data.sample_set import TOKENIZER, PreparedTexts
from enginewright.data.sources.arrays import read_arrays
from enginewright.data.sources.files import IMAGE_SUFFIXES, is_image
from enginewright.data.sources.tables import ONE, SUFFIXES, TWO, read_rows, text_in
from enginewright.data.texts import Text, TextReader
from enginewright.engine.engine import Engine, open_engine
from enginewright.engine.record import EngineRecord, read_engine, require_engine
from enginewright.tasks.choose import class_of, task_of
from enginewright.tasks.task import Shown, Task

UNREADABLE = 5
QUALITY = 92  # of JPEG
WIDEST = 60  # of a column of texts, in a line for people
EXAMPLES = """\
examples:
  enginewright infer artifacts/engines/int8 cat.jpg dog.png
  enginewright infer ENGINE photos --json | jq -r '.top[0].class'
  enginewright infer artifacts/engines/int8 photos --pictures seen
  enginewright infer artifacts/engines/int8 "a text" more.csv
  enginewright infer artifacts/engines/int8 houses.npz
  enginewright infer artifacts/engines/int8 - < lines.txt

Samples are prepared like those on which the engine was validated. An engine
for texts takes texts as they stand and files (.csv, .jsonl, .txt); where it
reads two texts as one, a tab divides them. One without images takes .npz files
that have an array for each input. - stands for the lines of standard input:
texts, or paths of images. --json prints a line for each, with "top" classes,
"boxes", "areas", "values" or a "vector", or the "error" of an image.
Exits 5 if an image could not be read, after answering for the others."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    what = "image files and folders of them, texts and files of them, or files of arrays"
    add_path(command, "samples", FILE, str, nargs="+", metavar="SAMPLE", help=what)
    at_a_time = "samples at a time; the engine's largest if not given"
    top = "how many classes or boxes to name, 3 if not given"
    command.add_argument("--top", type=_positive, default=3, metavar="K", help=top)
    command.add_argument("--batch", type=_positive, metavar="N", help=at_a_time)
    command.add_argument("--threads", type=_positive, metavar="N", help="CPU threads; one per usable core if not given")
    command.add_argument("--json", action="store_true", help="a line of JSON for each sample")
    add_path(command, "--pictures", FOLDER, metavar="FOLDER", help="where to draw the answers, on copies of the images")


def _positive(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise ArgumentTypeError(f"{given} is no whole number from 1 on")
    return int(given)


def run(chosen: Namespace) -> int:
    """Print the answer for each image, text or row. Draw each answer onto a copy of its image."""
    folder, places, pictures = chosen.engine, chosen.samples, chosen.pictures
    require_engine(folder)  # before the images: if the two are swapped, the message should be about the engine
    record = read_engine(folder)
    text, takes_images = record.text, record.preprocessing is not None
    if pictures and not takes_images:
        raise EnginewrightError(f"--pictures is for images, and {folder} takes {'texts' if text else 'arrays'}")
    found: Sequence[Path] | Sequence[Text] | Sequence[AnswerRow]
    if takes_images:
        found = images = find_images(list(map(Path, places)))
    elif text:
        found = find_texts(places, text)
    else:
        found = find_rows(list(map(Path, places)), [spec.name for spec in record.interface.sampled])
    drawn = picture_files(images, pictures) if pictures else {}
    width = min(max(len(as_written(each)) for each in found), WIDEST if text else sys.maxsize)
    unread = 0
    with open_engine(folder, None, InferenceParams(threads=chosen.threads or 0, cuda_graph=False)) as engine:
        reader = (TextsReader if text else ImageReader if takes_images else ArraysReader)(engine, folder)
        size = batch_size(engine.record, chosen.batch)
        batches: list[Any] = [found[start : start + size] for start in range(0, len(found), size)]
        # A progress bar would come between the lines of the answers.
        barred = sys.stderr.isatty() and not sys.stdout.isatty()
        shown = progress(batches, "samples", len(batches), "batches") if barred else batches
        answers = (answer for few in shown for answer in reader.answer(few, chosen.top, bool(drawn)))
        is_ranking = text is not None and text.together > 1 and class_of(engine.record.task).best_first
        for answer in best_first(answers) if is_ranking else answers:
            unread += answer.error is not None
            if chosen.json:
                print(answer.as_json(), flush=True)
            elif answer.shown is None:
                print(answer.error, file=sys.stderr)
            else:
                written = as_written(answer.given)
                shortened = f"{written[: width - 1]}…" if len(written) > width else written
                print(f"{shortened:<{width}}   {answer.shown.text}", flush=True)
            if answer.picture and isinstance(answer.given, Path):
                drawn[answer.given].parent.mkdir(parents=True, exist_ok=True)
                answer.picture.save(drawn[answer.given], quality=QUALITY)
        if reader.cut:
            print(f"longer than the model reads, and cut: {reader.cut} of {len(found)} texts", file=sys.stderr)
    if unread:
        print(f"could not be read: {unread} of {len(found)} images", file=sys.stderr)
        return UNREADABLE
    return 0


def batch_size(record: EngineRecord, asked: int | None) -> int:
    """Return the batch size that was asked for, or the largest that the engine takes."""
    largest = record.profile.batch.max
    if asked is not None and asked > largest:
        raise EnginewrightError(
            f"--batch {asked} is more than the engine takes: {largest}, build.profile.batch in params.yaml"
        )
    return asked or largest


PICTURES = {".jpg", ".jpeg", ".png"}  # what is written; images of other types become .png


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
    error: str | None = None
    picture: Image.Image | None = None  # with the answer drawn onto it

    def as_json(self) -> str:
        found = self.shown.fields if self.shown else {"error": self.error}
        if isinstance(self.given, Path):
            return json.dumps({"image": str(self.given), **found})
        if isinstance(self.given, AnswerRow):
            return json.dumps({"file": str(self.given.file), "row": self.given.number, **found})
        text = self.given[0] if len(self.given) == 1 else list(self.given)
        return json.dumps({"text": text, **found}, ensure_ascii=False)


def as_written(given: Path | Text | AnswerRow) -> str:
    if isinstance(given, AnswerRow):
        return f"{given.file}, row {given.number}"
    return str(given) if isinstance(given, Path) else " | ".join(" ".join(text.split()) for text in given)


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
        return map(Reply, rows, self._shown(feeds, top))


class TextsReader(Reader):
    def __init__(self, engine: Engine, folder: Path) -> None:
        super().__init__(engine, folder)
        assert engine.record.text, "the caller looked"
        self._reader = TextReader(folder / TOKENIZER, engine.record.text.how)

    def answer(self, texts: Sequence[Text], top: int, draws: bool = False) -> Iterator[Reply]:
        tokens = self._reader.tokens(texts)
        self.cut += sum(each.cut for each in tokens)
        return map(Reply, texts, self._shown(self._reader.arrays(tokens), top))


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
            yield Reply(path, answer, picture=self._task.draw(one[1], answer) if draws else None)

    def _read(self, path: Path) -> tuple[NDArray[Any], Image.Image] | str:
        """Return an image as the engine takes it, and as it is; or why it cannot be read."""
        image = None
        try:
            image = decode(path)
            return as_fed(pixels_of(image, self.how), self.how, self._engine.record.build.pixels), image
        except EnginewrightError as error:
            return f"{path}: {error}" if image else str(error)  # which names the file


def best_first(answers: Iterable[Reply]) -> list[Reply]:
    """Sort scores of pairs: the answers to each question by their score, the questions as they came."""
    first: dict[str, int] = {}  # where each question comes first

    def order(numbered: tuple[int, Reply]) -> tuple[int, float]:
        place, answer = numbered
        assert isinstance(answer.given, tuple), "these are texts"
        assert answer.shown, "which can all be read"
        return first.setdefault(answer.given[0], place), -float(answer.shown.fields["score"])

    return [answer for _, answer in sorted(enumerate(answers), key=order)]


def lines_of_standard_input() -> list[str]:
    """Return the lines that are not empty of what `-` stands for among images and texts."""
    try:
        content = sys.stdin.read() if sys.stdin else ""  # it may be closed, as in `<&-`
    except UnicodeDecodeError:
        raise EnginewrightError("standard input is no text in UTF-8") from None
    if not (lines := [line for line in content.split("\n") if line.strip()]):
        raise EnginewrightError("standard input, which - stands for, has no lines")
    return lines


def find_rows(places: Sequence[Path], inputs: Sequence[str]) -> list[AnswerRow]:
    """Return the rows of all files, in which the arrays have the names of the inputs."""
    found: list[AnswerRow] = []
    for place in places:
        arrays = _arrays_of(place, inputs)
        if found and (other := _shapes(found[0].arrays, 1)) != _shapes(arrays, 1):
            row = f"a row of {place} is {_shapes(arrays, 1)}"
            raise EnginewrightError(f"{row}, and one of {found[0].file} is {other}: ask for one at a time")
        found += [AnswerRow(place, number, arrays) for number in range(len(arrays[inputs[0]]))]
    return found


def _arrays_of(place: Path, inputs: Sequence[str]) -> dict[str, NDArray[np.generic]]:
    names = ", ".join(inputs)
    if place.suffix != ".npz":
        raise EnginewrightError(f"{place} is no .npz: the engine takes arrays, one for each input ({names})")
    try:
        held = read_arrays(place)
    except EnginewrightError as error:
        raise EnginewrightError(str(error).removeprefix("samples.source: ")) from None
    if not held.keys() >= set(inputs):
        raise EnginewrightError(f"{place} needs an array for each input ({names}), and has {', '.join(held) or 'none'}")
    arrays = {name: held[name].astype(held[name].dtype.newbyteorder("="), copy=False) for name in inputs}
    lengths = {len(array) if array.ndim else 0 for array in arrays.values()}
    if 0 in lengths or len(lengths) > 1:
        has = f"{place} has {_shapes(arrays)}"
        raise EnginewrightError(f"{has}: each array needs the rows along its first axis, as many as others")
    return arrays


def _shapes(arrays: Mapping[str, NDArray[np.generic]], first: int = 0) -> str:
    return ", ".join(f"{name} {array.shape[first:]}" for name, array in arrays.items())


def find_texts(places: Sequence[str], prepared: PreparedTexts) -> list[Text]:
    """Return the texts that are given: in files, in the lines of standard input for `-`, and as they stand."""
    found: list[Text] = []
    for place in places:
        if place == "-":
            found += [_one_input(line, prepared.together) for line in lines_of_standard_input()]
        elif place.endswith(SUFFIXES) and os.path.isfile(place):
            columns, rows = read_rows(Path(place))
            of_texts = TWO if TWO[0] in columns else ONE
            texts = [tuple(text_in(Path(place), row, column) for column in of_texts) for row in rows]
            if len(of_texts) < prepared.together:
                found += [_one_input(text[0], prepared.together) for text in texts]
            else:
                found += texts if len(of_texts) == prepared.together else [(part,) for text in texts for part in text]
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
        tabs = f"the model reads {together} texts as one input, with a tab between them"
        raise EnginewrightError(f"{tabs}, and not {text!r}")
    return parts


def find_images(places: Sequence[Path]) -> list[Path]:
    """Return the given files, those that the lines of standard input name for `-`, and all images below folders."""

    def refuse(error: OSError) -> None:
        raise error

    found: list[Path] = []
    for given in places:
        for place in map(Path, lines_of_standard_input()) if given == Path("-") else [given]:
            if not place.is_dir():
                found.append(place)
                continue
            files = (Path(root) / name for root, _, names in os.walk(place, onerror=refuse) for name in names)
            if not (inside := sorted(filter(is_image, files))):
                raise EnginewrightError(f"{place} holds no images: looked for {', '.join(sorted(IMAGE_SUFFIXES))}")
            found += inside
    return found


def picture_files(images: Sequence[Path], folder: Path) -> dict[Path, Path]:
    """Return where each image with its answer goes: to its name, below the folders in which the images differ."""
    absolute = {image: Path(os.path.abspath(image)) for image in images}
    common = os.path.commonpath([path.parent for path in absolute.values()])
    given = {path.resolve() for path in absolute.values()}
    found: dict[Path, Path] = {}
    for image, path in absolute.items():
        name = path.relative_to(common)
        found[image] = folder / (name if name.suffix.lower() in PICTURES else name.with_name(f"{name.name}.png"))
        if found[image].resolve() in given:
            raise EnginewrightError(f"--pictures {folder} holds the images themselves: give another folder")
    return found
