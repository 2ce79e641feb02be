"""Measure whether other programs, a virtual machine's host or a quota took the processor while something was timed."""

import os
from typing import Self

from enginewright.core.cores import TICKS_PER_SECOND, Usage, read_usage
from enginewright.core.text import counted
from enginewright.speed.records import Contention

MOST_OTHERS, MOST_STOLEN = 0.15, 0.02  # cores; a machine that nothing else used stayed below both


class ContentionWatch:
    """Measure what others took of the processor while this context was open: afterwards, `contention` has it."""

    contention: Contention

    def __enter__(self) -> Self:
        self._before = read_usage()
        return self

    def __exit__(self, *_: object) -> None:
        self.contention = contention_between(self._before, read_usage())


def contention_between(before: Usage, after: Usage) -> Contention:
    wall = max(after.wall - before.wall, 1 / TICKS_PER_SECOND)
    return Contention(
        cores=len(os.sched_getaffinity(0)),
        others=round(before.others_until(after), 3),
        stolen=round((after.stolen - before.stolen) / wall, 3),
        throttled=round((after.throttled - before.throttled) / wall, 3),
    )


def contention_problems(contention: Contention, threads: int) -> list[str]:
    """Return a sentence for each kind of contention that is too much for contenders with so many threads."""
    found = []
    if contention.others > contention.cores - threads + MOST_OTHERS:
        found.append(f"other programs took {contention.others:.1f} of {contention.cores} cores")
    if contention.stolen > MOST_STOLEN * contention.cores:
        found.append(f"the host took {contention.stolen:.2f} of {contention.cores} cores away")
    if contention.throttled > MOST_STOLEN * threads:
        found.append(f"the container's CPU quota held back {contention.throttled:.2f} of {counted(threads, 'thread')}")
    return found
