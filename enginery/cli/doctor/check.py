"""The result of one check of the doctor. It needs no packages, because they may be missing."""

from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    FINE = "fine"
    NOTE = "note"
    WRONG = "wrong"  # `dvc repro` cannot run


class Check(NamedTuple):
    topic: str
    state: State
    found: str
    remedy: str | None = None
