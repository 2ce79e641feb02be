"""One answer, as a line for people or as JSON."""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from enginery.data.texts import Text
from enginery.tasks.task import Shown


class Answer(NamedTuple):
    """The answer for one image or text, or the error that prevented it."""

    given: Path | Text
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


def as_written(given: Path | Text) -> str:
    return str(given) if isinstance(given, Path) else " | ".join(" ".join(text.split()) for text in given)


def as_json(answer: Answer) -> str:
    found = answer.shown.fields if answer.shown else {"error": answer.error}
    if isinstance(answer.given, Path):
        return json.dumps({"image": str(answer.given), **found})
    text = answer.given[0] if len(answer.given) == 1 else list(answer.given)
    return json.dumps({"text": text, **found}, ensure_ascii=False)
