"""Progress of the long steps: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 5.0


def progress(items: Iterable[Item], label: str, total: int | Callable[[], int], unit: str) -> Iterator[Item]:
    """`unit` is what is counted, in the plural. Where the total may grow, it is a function: how many are left."""

    def whole(done: int) -> int:
        return done + total() if callable(total) else total

    if sys.stderr.isatty():
        with tqdm(desc=label, total=whole(0), unit=f" {unit}", leave=False) as bar:
            for done, item in enumerate(items, start=1):
                yield item
                bar.total = whole(done)
                bar.update()
        return
    started = spoken = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now, of = time.monotonic(), whole(done)
        if done == of or now - spoken > SECONDS_BETWEEN_LINES:
            spoken = now
            print(f"{label}: {done} of {of} {unit}, {now - started:.1f} s", flush=True)
