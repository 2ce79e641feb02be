"""One answer, as a line for people or as JSON."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.data.texts import Text
from enginewright.tasks.task import Shown


@dataclass(frozen=True, eq=False)
class Row:
    """A sample that is a row of the arrays of a file."""

    file: Path
    number: int
    arrays: Mapping[str, NDArray[np.generic]]


class Answer(NamedTuple):
    """The answer for one image, text or row, or the error that prevented it."""

    given: Path | Text | Row
    shown: Shown | None
    error: str | None
    picture: Image.Image | None = None  # with the answer drawn onto it


def print_answer(answer: Answer, width: int, as_line: bool) -> None:
    if as_line:
        print(as_json(answer), flush=True)
    elif answer.shown is None:
        print(answer.error, file=sys.stderr)
    else:
        written = as_written(answer.given)
        if isinstance(answer.given, tuple) and len(written) > width:
            written = f"{written[: width - 1]}…"
        print(f"{written:<{width}}   {answer.shown.text}", flush=True)


def as_written(given: Path | Text | Row) -> str:
    if isinstance(given, Row):
        return f"{given.file}, row {given.number}"
    return str(given) if isinstance(given, Path) else " | ".join(" ".join(text.split()) for text in given)


def as_json(answer: Answer) -> str:
    found = answer.shown.fields if answer.shown else {"error": answer.error}
    if isinstance(answer.given, Path):
        return json.dumps({"image": str(answer.given), **found})
    if isinstance(answer.given, Row):
        return json.dumps({"file": str(answer.given.file), "row": answer.given.number, **found})
    text = answer.given[0] if len(answer.given) == 1 else list(answer.given)
    return json.dumps({"text": text, **found}, ensure_ascii=False)
