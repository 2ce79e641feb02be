"""Show the progress of long steps: a bar on a terminal, a line every few seconds in a log."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 5.0


def is_drawn() -> bool:
    """Tell whether bars fit: a terminal that nobody looks at, as of some services, has no columns."""
    return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0


def progress(items: Iterable[Item], label: str, total: int | Callable[[], int], unit: str) -> Iterator[Item]:
    """Yield the items and show how many are done. `unit` names them in the plural. A total that may still grow is given
    by a function, which returns how many are left. In a log, quick work says nothing: its result follows."""

    def all_of_them(done: int) -> int:
        return done + total() if callable(total) else total

    drawn = is_drawn()
    started = printed = time.monotonic()
    with tqdm(desc=label, total=all_of_them(0), unit=f" {unit}", leave=False, disable=not drawn) as bar:
        for done, item in enumerate(items, start=1):
            yield item
            bar.total = all_of_them(done)
            bar.update()
            now = time.monotonic()
            is_last = done == bar.total and printed != started
            if not drawn and (is_last or now - printed > SECONDS_BETWEEN_LINES):
                printed = now
                print(f"{label}: {done} of {bar.total} {unit}, {now - started:.1f} s", flush=True)


@dataclass
class Phase:
    parent: str | None
    steps: int
    done: int = 0


class Phases:
    """Show how far work is that consists of phases, each of steps or of further phases. Several threads may report."""

    def __init__(self, label: str) -> None:
        self._label, self._lock, self._drawn = label, threading.Lock(), is_drawn()
        self._open: dict[str, Phase] = {}  # in the order in which they began
        self._started = self._printed = time.monotonic()
        form = "{desc}: {percentage:3.0f}% {bar} {elapsed}"
        self._bar = tqdm(desc=label, total=100, leave=False, bar_format=form, disable=not self._drawn)
        self.close = self._bar.close

    def start(self, name: str, parent: str | None, steps: int) -> None:
        with self._lock:
            self._open[name] = Phase(parent, max(1, steps))
            self._show()

    def step(self, name: str, index: int) -> None:
        with self._lock:
            if name in self._open:
                self._open[name].done = index + 1
            self._show()

    def finish(self, name: str) -> None:
        with self._lock:
            self._open.pop(name, None)

    def _show(self) -> None:
        percent = 100 * max((self._share(name) for name, one in self._open.items() if not one.parent), default=0.0)
        innermost, now = next(reversed(self._open), ""), time.monotonic()
        self._bar.set_description_str(f"{self._label}, {innermost}", refresh=False)
        self._bar.n = percent
        self._bar.refresh()
        if not self._drawn and now - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = now
            print(f"{self._label}, {innermost}: {percent:.0f} %, {now - self._started:.1f} s", flush=True)

    def _share(self, name: str) -> float:
        """Return how much of a phase is done: its steps, and what is done of the phases that it waits for."""
        phase = self._open[name]
        within = max((self._share(inner) for inner, one in self._open.items() if one.parent == name), default=0.0)
        return min(1.0, (phase.done + within) / phase.steps)
