"""`enginewright infer`: answer for images, texts or arrays with an engine, as its task answers."""

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from enginewright import open_engine
from enginewright.cli.arguments import FILE, FOLDER, add_engine, add_path
from enginewright.cli.inputs import (
    QUALITY,
    AnswerRow,
    ArraysReader,
    ImageReader,
    TextsReader,
    as_written,
    best_first,
    find_images,
    find_rows,
    find_texts,
    picture_files,
    print_answer,
)
from enginewright.core.errors import EnginewrightError
from enginewright.core.progress import progress
from enginewright.data.texts import Text
from enginewright.engine.record import EngineRecord, read_engine, require_engine
from enginewright.tasks.choose import class_of

UNREADABLE = 5
WIDEST = 60  # of a column of texts, in a line for people
EXAMPLES = """\
examples:
  enginewright infer artifacts/engines/int8 cat.jpg dog.png
  enginewright infer artifacts/engines/int8 photos --top 1   a folder
  enginewright infer ENGINE photos --json | jq -r '.top[0].class'
  enginewright infer artifacts/engines/int8 photos --pictures seen
  enginewright infer artifacts/engines/int8 "a text" more.csv
  enginewright infer artifacts/engines/int8 houses.npz
  enginewright infer artifacts/engines/int8 - < lines.txt

Samples are prepared like those on which the engine was validated. An engine
for texts takes texts as they stand and files (.csv, .jsonl, .txt); where it
reads two texts as one, a tab divides them. One without images takes .npz files
that have an array for each input. - stands for the lines of standard input:
texts, or paths of images.
--json prints a line for each: {"image": ..., "error": ...}, or {"image": ...},
{"text": ...} or {"file": ..., "row": ...} with what the task has: "top":
[{"class": ..., "index": ..., "probability": ...}] of a classifier, "boxes" of
a detector, in pixels of the image, "areas" with a "share" of a segmenter,
"values" or a "vector".
--pictures draws each answer onto a copy of its image.
Exits 5 if an image could not be read, after answering for the others; 1 if the
engine cannot be used."""


def add_arguments(command: ArgumentParser) -> None:
    add_engine(command)
    what = "image files and folders of them, texts and files of them, or files of arrays"
    add_path(command, "samples", FILE, str, nargs="+", metavar="SAMPLE", help=what)
    at_a_time = "samples at a time; the engine's largest if not given"
    command.add_argument(
        "--top", type=_positive, default=3, metavar="K", help="how many classes or boxes to name, 3 if not given"
    )
    command.add_argument("--batch", type=_positive, metavar="N", help=at_a_time)
    command.add_argument("--threads", type=_positive, metavar="N", help="CPU threads; one per usable core if not given")
    command.add_argument("--json", action="store_true", help="a line of JSON for each sample")
    add_path(command, "--pictures", FOLDER, metavar="FOLDER", help="where to draw the answers, on copies of the images")


def run(chosen: Namespace) -> int:
    unread = infer(
        chosen.engine, chosen.samples, chosen.top, chosen.batch, chosen.threads or 0, chosen.json, chosen.pictures
    )
    return UNREADABLE if unread else 0


def _positive(given: str) -> int:
    if not given.isdecimal() or int(given) < 1:
        raise ArgumentTypeError(f"{given} is no whole number from 1 on")
    return int(given)


def infer(
    folder: Path,
    places: Sequence[str | Path],
    top: int,
    batch: int | None,
    threads: int,
    as_lines: bool,
    pictures: Path | None = None,
) -> int:
    """Print the answer for each image, text or row, and return how many could not be read. Draw each answer onto a copy
    of its image in the folder `pictures`."""
    require_engine(folder)  # before the images: if the two are swapped, the message should be about the engine
    record = read_engine(folder)
    text, takes_images = record.text, record.preprocessing is not None
    if pictures and not takes_images:
        raise EnginewrightError(f"--pictures is for images, and {folder} takes {'texts' if text else 'arrays'}")
    found: Sequence[Path] | Sequence[Text] | Sequence[AnswerRow]
    if takes_images:
        found = images = find_images(list(map(Path, places)))
    elif text:
        found = find_texts(list(map(str, places)), text)
    else:
        found = find_rows(list(map(Path, places)), [spec.name for spec in record.interface.sampled])
    drawn = picture_files(images, pictures) if pictures else {}
    width = max(len(as_written(each)) for each in found)
    unread = 0
    with open_engine(folder, threads) as engine:
        reader = (TextsReader if text else ImageReader if takes_images else ArraysReader)(engine, folder)
        size = batch_size(engine.record, batch)
        batches = [found[start : start + size] for start in range(0, len(found), size)]
        answers = (answer for few in _with_bar(batches) for answer in reader.answer(few, top, bool(drawn)))
        is_ranking = text is not None and text.together > 1 and class_of(engine.record.task).best_first
        for answer in best_first(answers) if is_ranking else answers:
            unread += answer.error is not None
            print_answer(answer, min(width, WIDEST) if text else width, as_lines)
            if answer.picture and isinstance(answer.given, Path):
                drawn[answer.given].parent.mkdir(parents=True, exist_ok=True)
                answer.picture.save(drawn[answer.given], quality=QUALITY)
        if reader.cut:
            print(f"longer than the model reads, and cut: {reader.cut} of {len(found)} texts", file=sys.stderr)
    if unread:
        print(f"could not be read: {unread} of {len(found)} images", file=sys.stderr)
    return unread


def _with_bar(batches: list[Any]) -> Iterable[Any]:
    """Show a progress bar, unless it would come between the lines of the answers."""
    drawn = sys.stderr.isatty() and not sys.stdout.isatty()
    return progress(batches, "samples", len(batches), "batches") if drawn else batches


def batch_size(record: EngineRecord, asked: int | None) -> int:
    """Return the batch size that was asked for, or the largest that the engine takes."""
    largest = record.profile.batch.max
    if asked is not None and asked > largest:
        raise EnginewrightError(
            f"--batch {asked} is more than the engine takes: {largest}, build.profile.batch in params.yaml"
        )
    return asked or largest
