"""Measure whether other programs, a virtual machine's host or a quota took the processor while something was timed."""

import os
import time
from pathlib import Path
from typing import NamedTuple, Self

from enginery.core.cores import throttled_seconds
from enginery.speed.records import Contention

MOST_OTHERS, MOST_STOLEN = 0.15, 0.02  # cores; a machine that nothing else used stayed below both
STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds of processor time since some start, summed over cores; `wall` is plain time."""

    wall: float
    busy: float
    stolen: float
    own: float
    throttled: float


def read_usage() -> Usage:
    """Read the use of the cores that this process may run on. What runs on other cores does not disturb it."""
    own_cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text(encoding="utf-8").splitlines()]
    ticks = [list(map(int, line[1:])) for line in lines if line and line[0] in own_cores]
    user, nice, system, _, _, interrupts, soft_interrupts, stolen, *_ = map(sum, zip(*ticks, strict=True))
    return Usage(
        wall=time.perf_counter(),
        busy=(user + nice + system + interrupts + soft_interrupts) / TICKS_PER_SECOND,
        stolen=stolen / TICKS_PER_SECOND,
        own=time.process_time(),
        throttled=throttled_seconds(),
    )


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
    others = (after.busy - before.busy) - (after.own - before.own)
    return Contention(
        cores=len(os.sched_getaffinity(0)),
        others=max(0.0, round(others / wall, 3)),
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
        found.append(f"the container's CPU quota held back {contention.throttled:.2f} of {threads} threads")
    return found
