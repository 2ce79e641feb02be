"""Progress of the long steps: a bar on a terminal, a plain line now and then in a log."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")
SECONDS_BETWEEN_LINES = 5.0


def progress(items: Iterable[Item], label: str, total: int) -> Iterator[Item]:
    if sys.stderr.isatty():
        yield from tqdm(items, desc=label, total=total, leave=False)
        return
    started = spoken = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if done == total or now - spoken > SECONDS_BETWEEN_LINES:
            spoken = now
            print(f"{label}: {done} of {total}, {now - started:.1f} s", flush=True)
