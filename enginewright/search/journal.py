"""Keep what was measured, so that a search that was stopped goes on where it was."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from platformdirs import user_cache_path

from enginewright.core.errors import UNREADABLE
from enginewright.core.files import sha256_of


class Journal:
    """A file with a line for each measurement. Two searches that ask the same questions share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[str, Any] = {}
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
            try:
                question, answer = json.loads(line)
                self._known[question] = answer
            except UNREADABLE:  # the last line of a run that was killed
                continue

    @classmethod
    def about(cls, *what: Any) -> Self:
        """Open the journal of these values, all of which the measurements depend on."""
        return cls(user_cache_path("enginewright") / "search" / f"{sha256_of(what)}.jsonl")

    def known(self, question: Any) -> Any | None:
        return self._known.get(sha256_of(question))

    def note(self, question: Any, answer: Any) -> None:
        key = sha256_of(question)
        self._known[key] = answer
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps([key, answer]) + "\n")

    def answer(self, question: Any, measure: Callable[[], Any]) -> Any:
        """Return what is known, or measure it and note it down."""
        if self.known(question) is None:
            self.note(question, measure())
        return self.known(question)
