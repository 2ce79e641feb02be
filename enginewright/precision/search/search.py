"""Find the fewest layers, by their work, that must stay in floating point for int8 to keep its thresholds."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from platformdirs import user_cache_path

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.files import sha256_of
from enginewright.core.progress import progress
from enginewright.precision.records import AIM, Step
from enginewright.precision.search.checks import LOST
from enginewright.precision.search.trials import LayerTrial

REST = 4  # that part of the other layers is spared next where the promise does not hold
HARDLY_ANY = 0.01  # of the work: to leave so much in floating point, too, costs less than a try


class Journal:
    """A file with a line for each measurement, so that a search that was stopped goes on where it was. Two searches
    that ask the same questions share it."""

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


class SearchAnswer(NamedTuple):
    losses: dict[str, float]  # by layer
    path: tuple[Step, ...]  # in the order in which they were tried
    spared: tuple[str, ...]


def find_spared(trial: LayerTrial, work: Mapping[str, float], journal: Journal, seconds: float) -> SearchAnswer:
    """Return the shortest start of all layers, ordered by worth, that keeps the thresholds when spared, or one with
    hardly more work. Then spare more, until samples that have chosen nothing show that others keep them, too."""

    def tried(spared: list[str]) -> Step:
        share = sum(work[name] for name in spared)
        question = ["check", trial.checks.limits.model_dump(), *spared]
        return Step(**journal.answer(question, lambda: trial.check(spared, share).model_dump()))

    path = [tried([])]
    if path[0].is_promised:
        return SearchAnswer({}, tuple(path), ())
    losses = measure_layers(trial, work, journal, seconds)
    order = in_order_of_worth(losses, work)
    path.append(tried(order))
    if not path[-1].is_promised:
        return SearchAnswer(losses, tuple(path), ())
    few, enough, guesses = path[0], path[-1], True
    ordered = [losses[name] for name in order]
    if few.used <= AIM:
        enough = few
    while (width := enough.spared - few.spared) > 1 and enough.work - few.work > HARDLY_ANY:
        middle = few.spared + width // 2
        guesses = guesses and few.used < LOST
        number = _likely(ordered, few, enough) if guesses else middle
        path.append(tried(order[:number]))
        few, enough = (few, path[-1]) if path[-1].used <= AIM else (path[-1], enough)
        # A guess that halves nothing is followed by a half, and that by a guess.
        guesses = not guesses or enough.spared - few.spared <= width / 2
    while not enough.is_promised:
        enough = tried(order[: enough.spared + max(1, (len(order) - enough.spared) // REST)])
        path.append(enough)
    return SearchAnswer(losses, tuple(path), tuple(order[: enough.spared]))


def _likely(losses: Sequence[float], few: Step, enough: Step) -> int:
    """Return how many layers must be spared if errors add up by their squares between what is too few and enough."""
    squares = np.square(losses[few.spared : enough.spared])
    share = (few.used**2 - AIM**2) / (few.used**2 - enough.used**2)  # of these squares, which must go
    last = int(np.searchsorted(np.cumsum(squares), share * squares.sum()))  # that is spared
    return few.spared + min(last + 1, len(squares) - 1)  # fewer than what is known to be enough


def measure_layers(trial: LayerTrial, work: Mapping[str, float], journal: Journal, seconds: float) -> dict[str, float]:
    """Return what each layer loses alone, as far as the time allows: first those that are cheapest to spare."""
    order = sorted(work, key=lambda each: (work[each], each))
    unknown = [name for name in order if journal.known(["alone", name]) is None]
    started = time.monotonic()
    in_time = takewhile(lambda _: time.monotonic() - started < seconds, trial.losses_alone(unknown))
    for name, loss in progress(in_time, "layers alone", len(unknown), "layers"):
        journal.note(["alone", name], loss)
    known = {name: journal.known(["alone", name]) for name in order}
    losses = {name: loss for name, loss in known.items() if loss is not None}
    if not losses:
        raise EnginewrightError(f"{seconds:g} seconds do not suffice to measure one layer: allow more")
    return losses


def in_order_of_worth(losses: Mapping[str, float], work: Mapping[str, float]) -> list[str]:
    """Return the layers, those first that lose most for their work. Errors of layers add up by their squares."""
    change = 0.5 / len(work)  # what it costs to leave int8 and to return to it, whatever the layer's size
    return sorted(losses, key=lambda name: (-(losses[name] ** 2) / (work[name] + change), name))
