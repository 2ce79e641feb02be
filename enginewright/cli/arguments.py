"""Commands share arguments that the shell completes, numbers, colours, and what a check of them finds."""

import os
from argparse import ArgumentParser, ArgumentTypeError
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, TextIO

FOLDER = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/", "tcsh": "d"}
FILE = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
PRECISION = {"bash": "_enginewright_precisions", "zsh": "_enginewright_precisions"}
RUN = {"bash": "_enginewright_runs", "zsh": "_enginewright_runs", "tcsh": "f"}
PRECISIONS = "$(ls artifacts/engines 2>/dev/null)"
REVISIONS = 'HEAD HEAD~1 $(git for-each-ref --format="%(refname:short)" 2>/dev/null)'
FUNCTIONS = {
    # In single quotes, because compgen expands its words itself: a branch may be called $(anything).
    "bash": f"""
_enginewright_precisions() {{ compgen -W '{PRECISIONS}' -- "$1"; }}
_enginewright_runs() {{ _shtab_compgen_files "$1"; compgen -W '{REVISIONS}' -- "$1"; }}
""",
    "zsh": f"""
_enginewright_precisions() {{ compadd -- {PRECISIONS}; }}
_enginewright_runs() {{ _files; compadd -- {REVISIONS}; }}
""",
    "tcsh": "",
}


def add_path(command: ArgumentParser, name: str, kind: dict[str, str], type: type = Path, **more: Any) -> None:
    """Add a path, which must not be empty: an empty one would mean the present folder."""

    def path(given: str) -> Any:
        if not given:
            raise ArgumentTypeError("it is empty: was a variable of the shell not set?")
        return type(given)

    add_completed(command, name, kind, type=path, **more)


def add_engine(command: ArgumentParser) -> None:
    add_path(command, "engine", FOLDER, help="an engine's folder, such as artifacts/engines/int8")


def add_completed(command: ArgumentParser, name: str, kind: dict[str, str], **more: Any) -> None:
    command.add_argument(name, **more).complete = kind  # type: ignore[attr-defined]


def number_above_zero(given: str) -> float:
    try:
        number = float(given)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ArgumentTypeError(f"{given} is no number above 0")
    return number


COLOURS = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}


def painted(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a style if the stream shows styles and the user allows them (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\033[{COLOURS[style]}m{text}\033[0m"


class State(str, Enum):
    FINE = "fine"
    NOTE = "note"
    WRONG = "wrong"  # `dvc repro` cannot run

    __str__ = str.__str__  # as in StrEnum, which Python 3.10 lacks


class Check(NamedTuple):
    topic: str
    state: State
    found: str
    remedy: str | None = None
