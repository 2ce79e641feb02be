"""Read a CSV file of paths, with or without a column of labels, of masks, or with columns of targets."""

import csv
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.facts import Known
from enginewright.core.text import is_unicode
from enginewright.core.user_files import lies_in
from enginewright.data.sample_set import Sample
from enginewright.data.sources.files import Classes, ImageFiles, class_each
from enginewright.data.sources.truth import QUESTIONS, Masks, Numbers, Truths, ranked, truths_of

Row = tuple[int, list[str]]  # the number of the line, and its cells


def open_table(table: Path, data: Path, listed: Classes | None, known: Known) -> ImageFiles:
    column = "label" if known.pairs else known.column  # of pairs of images, no table tells
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
    return ranked(numbers, None) if known.questions else Numbers(numbers)


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


# Read texts from a CSV file, from JSON lines, or from a plain file with a text per line. A row is one text, `text`,
# or two, `text_a` and `text_b`. In the task embedding the two are samples of their own, whose `score` says how alike
# they are; in other tasks they are one input, as a reranker reads a question and an answer.

ONE, TWO = ("text",), ("text_a", "text_b")
QUESTION = "question"  # the column that says which rows are answers to one question
SUFFIXES = (".csv", ".jsonl", ".txt")
TextRow = tuple[int, Mapping[str, Any]]  # the number of the line, and what stands there by column


@dataclass(frozen=True)
class Texts:
    """Samples that are texts: each is one, or two that are one input."""

    name: str
    tokenizer: Path
    rows: Sequence[tuple[str, ...]]
    labels: list[int] | None
    class_names: tuple[str, ...]
    truths: Truths | None = None
    paired: bool = False  # each row is a pair of samples

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def together(self) -> int:
        """Return how many texts are one input."""
        return 1 if self.paired else len(self.rows[0])

    def texts(self, indices: Sequence[int]) -> list[tuple[str, ...]]:
        """Return the samples of these rows: both texts of a pair, one after the other."""
        rows = [self.rows[index] for index in indices]
        return [(text,) for row in rows for text in row] if self.paired else rows

    def samples(self, indices: Sequence[int]) -> list[Sample]:
        sides = "ab" if self.paired else ("",)
        labels = self.labels
        places = [(index, side) for index in indices for side in sides]
        return [
            Sample(
                name=f"{self.name}/{index:06d}{side}",
                sha256=hashlib.sha256("\0".join(text).encode()).hexdigest(),
                label=None if labels is None else labels[index],
            )
            for (index, side), text in zip(places, self.texts(indices), strict=True)
        ]


def open_texts(path: Path, tokenizer: Path, listed: Classes | None, known: Known) -> Texts:
    columns, rows = read_rows(path)
    used = TWO if TWO[0] in columns else ONE
    if missing := [column for column in used if column not in columns]:
        raise EnginewrightError(
            f"samples.source: {path} has {', '.join(columns) or 'nothing'}, and needs a column text, or the two text_a "
            f"and text_b; {missing[0]} is missing"
        )
    paired = used == TWO and known.pairs
    texts = [tuple(text_in(path, row, column) for column in used) for row in rows]
    column = known.column
    if paired and column not in columns:
        raise EnginewrightError(
            f"samples.source: {path} has pairs of texts, and needs a column score that says how alike"
        )
    has_labels = known.labels and "label" in columns
    written = [_cell(path, row, "label") for row in rows] if has_labels else None
    classes = class_each(written, listed, lambda index: f"{path}, line {rows[index][0]},")
    questions = _questions(path, columns, rows, texts) if known.questions else {}
    truths = None
    if column in ("target", "score") and column in columns and (paired or column == "target"):
        numbers = [_numbers(path, row, column) for row in rows]
        if odd := [row[0] for row, each in zip(rows, numbers, strict=True) if len(each) != len(numbers[0])]:
            raise _bad_row(str(path), odd[0], f"has another number of {column}s than line {rows[0][0]}")
        values = np.array(numbers)
        truths = truths_of(known, path, {known.array: values[:, 0] if paired else values} | questions, len(rows))
    elif questions:
        truths = truths_of(known, path, questions, len(rows))
    return Texts(path.name, tokenizer, texts, *classes, truths=truths, paired=paired)


def _questions(
    path: Path, columns: Sequence[str], rows: Sequence[TextRow], texts: Sequence[tuple[str, ...]]
) -> dict[str, NDArray[np.str_]]:
    """Return the question of each row: what its column says, or else the first of two texts."""
    if QUESTION in columns:
        return {QUESTIONS: np.array([_cell(path, row, QUESTION) for row in rows])}
    return {QUESTIONS: np.array([text[0] for text in texts])} if len(texts[0]) > 1 else {}


def read_rows(path: Path) -> tuple[list[str], list[TextRow]]:
    """Return the columns and the rows of a file. Empty lines do not count."""
    if path.suffix not in SUFFIXES:
        raise EnginewrightError(f"samples.source: {path} is no file of texts: give one of {', '.join(SUFFIXES)}")
    try:
        content = path.read_text("utf-8-sig")  # spreadsheets put a byte order mark first
    except (UnicodeDecodeError, IsADirectoryError):
        raise EnginewrightError(f"samples.source: {path} is not a text file in UTF-8") from None
    read = {".csv": _read_csv, ".jsonl": _read_json_lines, ".txt": _read_lines}[path.suffix]
    columns, rows = read(content, str(path))
    if not rows:
        raise EnginewrightError(f"samples.source: {path} holds no texts")
    return columns, rows


def _read_csv(content: str, what: str) -> tuple[list[str], list[TextRow]]:
    reader = csv.reader(content.splitlines(keepends=True), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise EnginewrightError(f"samples.source: {what}, line {reader.line_num}, is not CSV: {error}") from None
    header = [cell.strip() for cell in lines[0][1]] if lines else []
    for line, cells in lines:
        if len(cells) != len(header):
            raise _bad_row(what, line, f"has {len(cells)} cells, and the header has {len(header)}")
    # Several columns may have one name: targets.
    rows: list[TextRow] = [(line, _by_column(header, cells)) for line, cells in lines[1:]]
    return header, rows


def _by_column(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    targets = [cell for column, cell in zip(header, cells, strict=True) if column == "target"]
    return dict(zip(header, cells, strict=True)) | ({"target": targets} if targets else {})


def _read_json_lines(content: str, what: str) -> tuple[list[str], list[TextRow]]:
    rows: list[TextRow] = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except UNREADABLE as error:
            raise _bad_row(what, number, f"is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise _bad_row(what, number, 'is no JSON object, such as {"text": "..."}')
        rows.append((number, found))
    return list(rows[0][1]) if rows else [], rows


def _read_lines(content: str, what: str) -> tuple[list[str], list[TextRow]]:
    rows: list[TextRow] = [(n, {"text": line}) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
    return list(ONE), rows


def text_in(path: Path, row: TextRow, column: str) -> str:
    text = row[1].get(column)
    if not isinstance(text, str) or not text.strip():
        found = "is empty" if text == "" or isinstance(text, str) else f"is {text!r}, and no text"
        raise _bad_row(str(path), row[0], f"{column} {found if column in row[1] else 'is missing'}")
    _require_unicode(path, row, column, text)
    return text


def _require_unicode(path: Path, row: TextRow, column: str, text: str) -> None:
    if not is_unicode(text):
        raise _bad_row(str(path), row[0], f"{column} holds half a character, which no file can hold")


def _cell(path: Path, row: TextRow, column: str) -> str:
    value = row[1].get(column)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise _bad_row(str(path), row[0], f"has no {column}; texts without any need a file without that column")
    _require_unicode(path, row, column, str(value))
    return str(value).strip()


def _numbers(path: Path, row: TextRow, column: str) -> list[float]:
    given: Any = row[1].get(column)
    values = given if isinstance(given, list) else [given]
    try:
        numbers = [float(value) for value in values]
    except UNREADABLE:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise _bad_row(str(path), row[0], f"has the {column} {given!r}, which is no finite number")
    return numbers


def _bad_row(what: str, line: int, why: str) -> EnginewrightError:
    return EnginewrightError(f"samples.source: {what}, line {line}, {why}")
