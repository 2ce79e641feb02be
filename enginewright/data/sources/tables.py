"""Read a table: a CSV of images, or texts as CSV, as JSON lines, or as a plain file with a text per line.

A row of texts is one text, `text`, or two, `text_a` and `text_b`. In the task embedding the two are samples of their
own, whose `score` says how alike they are; in other tasks they are one input, as a reranker reads a question and an
answer."""

import csv
import hashlib
import io
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import UNREADABLE, bad_source
from enginewright.core.facts import Known
from enginewright.core.text import is_unicode
from enginewright.core.user_files import lies_in
from enginewright.data.sample_set import Sample
from enginewright.data.sources.files import Classes, ImageFiles, at_line, class_each
from enginewright.data.sources.truth import QUESTIONS, Masks, Numbers, Truths, ranked, truths_of

Row = tuple[int, Mapping[str, Any]]  # the number of the line, and what stands there by column


def open_table(table: Path, data: Path, listed: Classes | None, known: Known) -> ImageFiles:
    """Open a CSV of the paths of images, with or without a column of labels or masks, or with columns of targets."""
    column = "label" if known.pairs else known.column  # of pairs of images, no table tells
    columns, rows = read_rows(table)
    if columns[:1] != ["path"] or {*columns[1:]} - {column} or (len(columns) > 2 and column in ("label", "mask")):
        raise bad_source(
            f"{table} must begin with the line path,{column} or path, and not with {','.join(columns)}; if it holds "
            "texts, set samples.text"
        )
    files = [_file(table, row, "path", data) for row in rows]
    seen: dict[Path, int] = {}
    for (line, _), file in zip(rows, files, strict=True):
        if (first := seen.setdefault(file.resolve(), line)) != line:  # it could be in calibration and validation
            raise at_line(table, line, f"names {file}, as line {first} does")
    truths: Truths | None = None
    if "mask" in columns:
        truths = Masks([_file(table, row, "mask", data) for row in rows], known.ignore)
    elif column in columns and column != "label":
        numbers = np.array([_numbers(table, row, column) for row in rows])
        truths = ranked(numbers, None) if known.questions else Numbers(numbers)
    labels = [_cell(table, row, "label") for row in rows] if "label" in columns else None
    classes = class_each(labels, listed, lambda index: f"{table}, line {rows[index][0]},")
    return ImageFiles(files, [row["path"].strip() for _, row in rows], *classes, truths=truths)


def _file(table: Path, row: Row, column: str, data: Path) -> Path:
    """Return the file of a path, which is relative to the folder of the CSV."""
    line, path = row[0], str(row[1][column]).strip()
    file = table.parent / path
    if not file.is_file():
        raise at_line(table, line, f"names {path!r}, but {file} is not a file")
    if not lies_in(file, data):
        raise at_line(table, line, f"names {path!r}, which lies outside {data}/: DVC would not see it change")
    return file


ONE, TWO = ("text",), ("text_a", "text_b")
QUESTION = "question"  # the column that says which rows are answers to one question
SUFFIXES = (".csv", ".jsonl", ".txt")


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
        places = [(index, side) for index in indices for side in ("ab" if self.paired else ("",))]
        return [
            Sample(
                name=f"{self.name}/{index:06d}{side}",
                sha256=hashlib.sha256("\0".join(text).encode()).hexdigest(),
                label=None if self.labels is None else self.labels[index],
            )
            for (index, side), text in zip(places, self.texts(indices), strict=True)
        ]


def open_texts(path: Path, tokenizer: Path, listed: Classes | None, known: Known) -> Texts:
    columns, rows = read_rows(path)
    needed = TWO if TWO[0] in columns else ONE
    if missing := [column for column in needed if column not in columns]:
        raise bad_source(
            f"{path} has {', '.join(columns) or 'nothing'}, and needs a column text, or the two text_a and text_b; "
            f"{missing[0]} is missing"
        )
    paired = needed == TWO and known.pairs
    texts = [tuple(text_in(path, row, column) for column in needed) for row in rows]
    column = known.column
    if paired and column not in columns:
        raise bad_source(f"{path} has pairs of texts, and needs a column score that says how alike")
    written = [_cell(path, row, "label") for row in rows] if known.labels and "label" in columns else None
    classes = class_each(written, listed, lambda index: f"{path}, line {rows[index][0]},")
    beside: dict[str, NDArray[np.generic]] = {}
    if known.questions and QUESTION in columns:
        beside[QUESTIONS] = np.array([_cell(path, row, QUESTION) for row in rows])
    elif known.questions and needed == TWO:
        beside[QUESTIONS] = np.array([text[0] for text in texts])
    if column in columns and column != "label" and paired == known.pairs:
        numbers = [_numbers(path, row, column) for row in rows]
        if odd := [row[0] for row, each in zip(rows, numbers, strict=True) if len(each) != len(numbers[0])]:
            raise at_line(path, odd[0], f"has another number of {column}s than line {rows[0][0]}")
        beside[known.array] = np.array(numbers)[:, 0] if paired else np.array(numbers)
    truths = truths_of(known, path, beside, len(rows)) if beside else None
    return Texts(path.name, tokenizer, texts, *classes, truths=truths, paired=paired)


def read_rows(path: Path) -> tuple[list[str], list[Row]]:
    """Return the columns and the rows of a file. Empty lines do not count."""
    if path.suffix not in SUFFIXES:
        raise bad_source(f"{path} is no file of texts: give one of {', '.join(SUFFIXES)}")
    try:
        content = path.read_text("utf-8-sig")  # spreadsheets put a byte order mark first
    except (UnicodeDecodeError, IsADirectoryError):
        raise bad_source(f"{path} is not a text file in UTF-8") from None
    if path.suffix == ".csv":
        columns, rows = _read_csv(path, content)
    else:
        lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
        is_json = path.suffix == ".jsonl"
        rows = [(number, _read_json(path, number, line) if is_json else {"text": line}) for number, line in lines]
        columns = list(rows[0][1]) if rows else []
    if not rows:
        raise bad_source(f"{path} holds no samples")
    return columns, rows


def _read_csv(path: Path, content: str) -> tuple[list[str], list[Row]]:
    reader = csv.reader(io.StringIO(content), strict=True)
    try:
        lines = [(reader.line_num, cells) for cells in reader if cells]
    except csv.Error as error:
        raise bad_source(f"{path}, line {reader.line_num}, is not CSV: {error}") from None
    header = [cell.strip() for cell in lines[0][1]] if lines else []
    rows: list[Row] = []
    for line, cells in lines[1:]:
        if len(cells) != len(header):
            raise at_line(path, line, f"has {len(cells)} cells, and the header has {len(header)}")
        of_name = {name: [cell for other, cell in zip(header, cells, strict=True) if other == name] for name in header}
        rows.append((line, {name: each if len(each) > 1 else each[0] for name, each in of_name.items()}))
    return header, rows


def _read_json(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except UNREADABLE as error:
        raise at_line(path, number, f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise at_line(path, number, 'is no JSON object, such as {"text": "..."}')
    if not is_unicode(json.dumps(found, ensure_ascii=False)):
        raise at_line(path, number, "holds half a character, which no file can hold")
    return found


def text_in(path: Path, row: Row, column: str) -> str:
    text = row[1].get(column)
    if not isinstance(text, str) or not text.strip():
        found = "is empty" if isinstance(text, str) else f"is {text!r}, and no text"
        raise at_line(path, row[0], f"{column} {found if column in row[1] else 'is missing'}")
    return text


def _cell(path: Path, row: Row, column: str) -> str:
    value = row[1].get(column)
    if isinstance(value, bool) or not isinstance(value, str | int) or not str(value).strip():
        raise at_line(path, row[0], f"has no {column}; samples without any need a file without that column")
    return str(value).strip()


def _numbers(path: Path, row: Row, column: str) -> list[float]:
    given: Any = row[1].get(column)
    numbers: list[float] = []
    for value in given if isinstance(given, list) else [given]:
        number = math.nan
        with suppress(*UNREADABLE):
            number = float(value)
        if not math.isfinite(number):
            raise at_line(path, row[0], f"has the {column} {value!r}, which is no finite number")
        numbers.append(number)
    return numbers
