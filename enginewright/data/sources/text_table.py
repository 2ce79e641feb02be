"""Read texts from a CSV file, from JSON lines, or from a plain file with a text per line.

A row is one text, `text`, or two, `text_a` and `text_b`. In the task embedding the two are samples of their own, whose
`score` says how alike they are; in other tasks they are one input, as a reranker reads a question and an answer.
"""

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
from enginewright.core.tasks import RANKING
from enginewright.core.text import is_unicode
from enginewright.data.manifest import Sample
from enginewright.data.sources.classes import Classes, class_each
from enginewright.data.sources.truth import LABELLED, QUESTIONS, Known, Truths

ONE, TWO = ("text",), ("text_a", "text_b")
KNOWN = {"classification": "label", "regression": "target", RANKING: "target", "embedding": "score"}
QUESTION = "question"  # the column that says which rows are answers to one question
SUFFIXES = (".csv", ".jsonl", ".txt")
Row = tuple[int, Mapping[str, Any]]  # the number of the line, and what stands there by column


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


def open_texts(path: Path, tokenizer: Path, listed: Classes | None, known: Known = LABELLED) -> Texts:
    columns, rows = read_rows(path)
    used = TWO if TWO[0] in columns else ONE
    if missing := [column for column in used if column not in columns]:
        raise EnginewrightError(
            f"samples.source: {path} has {', '.join(columns) or 'nothing'}, and needs a column text, or the two text_a "
            f"and text_b; {missing[0]} is missing"
        )
    paired = used == TWO and known.task == "embedding"
    texts = [tuple(text_in(path, row, column) for column in used) for row in rows]
    column = KNOWN.get(known.task)
    if paired and column not in columns:
        raise EnginewrightError(
            f"samples.source: {path} has pairs of texts, and needs a column score that says how alike"
        )
    has_labels = known.labels and "label" in columns
    written = [_cell(path, row, "label") for row in rows] if has_labels else None
    classes = class_each(written, listed, lambda index: f"{path}, line {rows[index][0]},")
    questions = _questions(path, columns, rows, texts) if known.task == RANKING else {}
    truths = None
    if column in ("target", "score") and column in columns and (paired or column == "target"):
        numbers = [_numbers(path, row, column) for row in rows]
        if odd := [row[0] for row, each in zip(rows, numbers, strict=True) if len(each) != len(numbers[0])]:
            raise _mistake(str(path), odd[0], f"has another number of {column}s than line {rows[0][0]}")
        values = np.array(numbers)
        truths = known.truths(path, {known.array: values[:, 0] if paired else values} | questions, len(rows))
    elif questions:
        truths = known.truths(path, questions, len(rows))
    return Texts(path.name, tokenizer, texts, *classes, truths=truths, paired=paired)


def _questions(
    path: Path, columns: Sequence[str], rows: Sequence[Row], texts: Sequence[tuple[str, ...]]
) -> dict[str, NDArray[np.str_]]:
    """Return the question of each row: what its column says, or else the first of two texts."""
    if QUESTION in columns:
        return {QUESTIONS: np.array([_cell(path, row, QUESTION) for row in rows])}
    return {QUESTIONS: np.array([text[0] for text in texts])} if len(texts[0]) > 1 else {}


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
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


def _read_csv(content: str, what: str) -> tuple[list[str], list[Row]]:
    reader = csv.reader(content.splitlines(keepends=True), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise EnginewrightError(f"samples.source: {what}, line {reader.line_num}, is not CSV: {error}") from None
    header = [cell.strip() for cell in lines[0][1]] if lines else []
    for line, cells in lines:
        if len(cells) != len(header):
            raise _mistake(what, line, f"has {len(cells)} cells, and the header has {len(header)}")
    # Several columns may have one name: targets.
    rows: list[Row] = [(line, _by_column(header, cells)) for line, cells in lines[1:]]
    return header, rows


def _by_column(header: Sequence[str], cells: Sequence[str]) -> dict[str, Any]:
    targets = [cell for column, cell in zip(header, cells, strict=True) if column == "target"]
    return dict(zip(header, cells, strict=True)) | ({"target": targets} if targets else {})


def _read_json_lines(content: str, what: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
        except UNREADABLE as error:
            raise _mistake(what, number, f"is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise _mistake(what, number, 'is no JSON object, such as {"text": "..."}')
        rows.append((number, found))
    return list(rows[0][1]) if rows else [], rows


def _read_lines(content: str, what: str) -> tuple[list[str], list[Row]]:
    rows: list[Row] = [(n, {"text": line}) for n, line in enumerate(content.split("\n"), 1) if line.strip()]
    return list(ONE), rows


def text_in(path: Path, row: Row, column: str) -> str:
    text = row[1].get(column)
    if not isinstance(text, str) or not text.strip():
        found = "is empty" if text == "" or isinstance(text, str) else f"is {text!r}, and no text"
        raise _mistake(str(path), row[0], f"{column} {found if column in row[1] else 'is missing'}")
    _require_unicode(path, row, column, text)
    return text


def _require_unicode(path: Path, row: Row, column: str, text: str) -> None:
    if not is_unicode(text):
        raise _mistake(str(path), row[0], f"{column} holds half a character, which no file can hold")


def _cell(path: Path, row: Row, column: str) -> str:
    value = row[1].get(column)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise _mistake(str(path), row[0], f"has no {column}; texts without any need a file without that column")
    _require_unicode(path, row, column, str(value))
    return str(value).strip()


def _numbers(path: Path, row: Row, column: str) -> list[float]:
    given: Any = row[1].get(column)
    values = given if isinstance(given, list) else [given]
    try:
        numbers = [float(value) for value in values]
    except UNREADABLE:
        numbers = [math.nan]
    if not all(map(math.isfinite, numbers)):
        raise _mistake(str(path), row[0], f"has the {column} {given!r}, which is no finite number")
    return numbers


def _mistake(what: str, line: int, why: str) -> EnginewrightError:
    return EnginewrightError(f"samples.source: {what}, line {line}, {why}")
