"""Read a CSV file of paths, with or without a column of labels, of masks, or with columns of targets."""

import csv
import math
from pathlib import Path

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.tasks import RANKING
from enginewright.core.user_files import lies_in
from enginewright.data.sources.classes import Classes, class_each
from enginewright.data.sources.files import ImageFiles
from enginewright.data.sources.truth import LABELLED, Known, Masks, Numbers, Truths, ranked

# What is known of an image, if not its label.
COLUMN = {"segmentation": "mask", "regression": "target", RANKING: "target"}
Row = tuple[int, list[str]]  # the number of the line, and its cells


def open_table(table: Path, data: Path, listed: Classes | None, known: Known = LABELLED) -> ImageFiles:
    column = COLUMN.get(known.task, "label")
    header, rows = _read(table, column)
    files = [_file(table, line, cells[0], data) for line, cells in rows]
    _refuse_duplicates(table, rows, files)
    names = [cells[0].strip() for _, cells in rows]
    truths = _truths(table, rows, column, data, known) if len(header) > 1 and column != "label" else None
    labels = [cells[1].strip() for _, cells in rows] if "label" in header else None
    if labels and "" in labels:
        raise _mistake(table, rows[labels.index("")][0], "has no label; images without labels need a CSV without them")
    classes = class_each(labels, listed, lambda index: f"{table}, line {rows[index][0]},")
    return ImageFiles(files, names, *classes, truths=truths)


def _truths(table: Path, rows: list[Row], column: str, data: Path, known: Known) -> Truths:
    if column == "mask":
        return Masks([_file(table, line, cells[1], data) for line, cells in rows], known.ignore)
    numbers = np.array([[_number(table, line, cell) for cell in cells[1:]] for line, cells in rows])
    return ranked(numbers, None) if known.task == RANKING else Numbers(numbers)


def _number(table: Path, line: int, cell: str) -> float:
    try:
        if math.isfinite(number := float(cell)):
            return number
    except ValueError:
        pass
    raise _mistake(table, line, f"has the target {cell.strip()!r}, which is no finite number")


def _read(table: Path, column: str) -> tuple[list[str], list[Row]]:
    try:
        with table.open(encoding="utf-8-sig", newline="") as file:  # spreadsheets put a byte order mark first
            reader = csv.reader(file, strict=True)
            rows = [(reader.line_num, cells) for cells in reader if cells]
    except (csv.Error, UnicodeDecodeError) as error:
        raise EnginewrightError(f"samples.source: {table} is not a CSV file in UTF-8: {error}") from None
    header = [cell.strip() for cell in rows[0][1]] if rows else []
    if header[:1] != ["path"] or header[1:] != [column] * (len(header) - 1 if column == "target" else len(header[1:2])):
        found = f"its first line is {','.join(header)!r}" if rows else "it is empty"
        raise EnginewrightError(f"samples.source: {table} must begin with the line path,{column} or path, but {found}")
    if len(rows) == 1:
        raise EnginewrightError(f"samples.source: {table} lists no images, only its header")
    for line, cells in rows:
        if len(cells) != len(header):
            raise _mistake(table, line, f"has {len(cells)} cells, and the header has {len(header)}")
    return header, rows[1:]


def _file(table: Path, line: int, path: str, data: Path) -> Path:
    """Return the file of a path, which is relative to the folder of the CSV."""
    file = table.parent / path.strip()
    if not file.is_file():
        raise _mistake(table, line, f"names {path.strip()!r}, but {file} is not a file")
    if not lies_in(file, data):
        raise _mistake(table, line, f"names {path.strip()!r}, which lies outside {data}/: DVC would not see it change")
    return file


def _refuse_duplicates(table: Path, rows: list[Row], files: list[Path]) -> None:
    """Refuse an image that is listed twice: it could be in the calibration and in the validation."""
    seen: dict[Path, int] = {}
    for (line, _), file in zip(rows, files, strict=True):
        first = seen.setdefault(file.resolve(), line)
        if first != line:
            raise _mistake(table, line, f"names {file}, as line {first} does")


def _mistake(table: Path, line: int, what: str) -> EnginewrightError:
    return EnginewrightError(f"samples.source: {table}, line {line}, {what}")
