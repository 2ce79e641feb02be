"""Answer for images, texts or arrays with an engine, as its task answers: classes, boxes, numbers."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from enginewright import open_engine
from enginewright.cli.inference.answer import Row, as_written, print_answer
from enginewright.cli.inference.arrays import ArraysReader, find_rows
from enginewright.cli.inference.images import ImageReader, find_images, picture_files, save_picture
from enginewright.cli.inference.texts import TextsReader, best_first, find_texts
from enginewright.core.errors import EnginewrightError
from enginewright.core.progress import progress
from enginewright.core.tasks import RANKING
from enginewright.data.texts import Text
from enginewright.engine.folder import read_engine, require_engine
from enginewright.engine.record import EngineRecord

WIDEST = 60  # of a column of texts, in a line for people


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
    images = find_images(list(map(Path, places))) if takes_images else []
    found = images if takes_images else _not_images(record, places)
    drawn = picture_files(images, pictures) if pictures else {}
    width = max(len(as_written(each)) for each in found)
    unread = 0
    with open_engine(folder, threads) as engine:
        reader = (TextsReader if text else ImageReader if takes_images else ArraysReader)(engine, folder)
        size = batch_size(engine.record, batch)
        batches = [found[start : start + size] for start in range(0, len(found), size)]
        answers = (answer for few in _with_bar(batches) for answer in reader.answer(few, top, bool(drawn)))
        is_ranking = text is not None and text.together > 1 and engine.record.task == RANKING
        for answer in best_first(answers) if is_ranking else answers:
            unread += answer.error is not None
            print_answer(answer, min(width, WIDEST) if text else width, as_lines)
            if answer.picture and isinstance(answer.given, Path):
                save_picture(answer.picture, drawn[answer.given])
        if reader.cut:
            print(f"longer than the model reads, and cut: {reader.cut} of {len(found)} texts", file=sys.stderr)
    if unread:
        print(f"could not be read: {unread} of {len(found)} images", file=sys.stderr)
    return unread


def _not_images(record: EngineRecord, places: Sequence[str | Path]) -> Sequence[Text | Row]:
    if record.text:
        return find_texts(list(map(str, places)), record.text)
    return find_rows(list(map(Path, places)), [spec.name for spec in record.interface.sampled])


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
