"""Show the progress of long steps: a bar on a terminal, a line every few seconds in a log."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 5.0


def progress(items: Iterable[Item], label: str, total: int | Callable[[], int], unit: str) -> Iterator[Item]:
    """Yield the items and show how many are done. `unit` names them in the plural.

    A total that may still grow is given by a function, which returns how many are left.
    """

    def all_of_them(done: int) -> int:
        return done + total() if callable(total) else total

    if sys.stderr.isatty():
        with tqdm(desc=label, total=all_of_them(0), unit=f" {unit}", leave=False) as bar:
            for done, item in enumerate(items, start=1):
                yield item
                bar.total = all_of_them(done)
                bar.update()
        return
    started = printed = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now, count = time.monotonic(), all_of_them(done)
        if done == count or now - printed > SECONDS_BETWEEN_LINES:
            printed = now
            print(f"{label}: {done} of {count} {unit}, {now - started:.1f} s", flush=True)
