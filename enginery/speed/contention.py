"""Whether the processor was taken while something was timed: by other programs, a virtual machine's host, a quota."""

import os
import time
from pathlib import Path
from typing import NamedTuple, Self

from enginery.core.cores import throttled_seconds
from enginery.speed.records import Contention

MOST_OTHERS, MOST_STOLEN = 0.15, 0.02  # cores; what is left alone was seen on a machine that nothing else used
STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds since some beginning; but for `wall`, summed over cores."""

    wall: float
    busy: float
    stolen: float
    own: float
    throttled: float


def usage() -> Usage:
    """Of the cores that this process may be put on: what others do elsewhere does not disturb it."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in STAT.read_text().splitlines()]
    ticks = [list(map(int, line[1:])) for line in lines if line and line[0] in ours]
    user, nice, system, _, _, interrupts, soft_interrupts, stolen, *_ = map(sum, zip(*ticks, strict=True))
    return Usage(
        wall=time.perf_counter(),
        busy=(user + nice + system + interrupts + soft_interrupts) / TICKS_PER_SECOND,
        stolen=stolen / TICKS_PER_SECOND,
        own=time.process_time(),
        throttled=throttled_seconds(),
    )


class Company:
    """What others took of the processor while this was entered."""

    taken: Contention

    def __enter__(self) -> Self:
        self._before = usage()
        return self

    def __exit__(self, *_: object) -> None:
        self.taken = contention(self._before, usage())


def contention(before: Usage, after: Usage) -> Contention:
    wall = max(after.wall - before.wall, 1 / TICKS_PER_SECOND)
    others = (after.busy - before.busy) - (after.own - before.own)
    return Contention(
        cores=len(os.sched_getaffinity(0)),
        others=max(0.0, round(others / wall, 3)),
        stolen=round((after.stolen - before.stolen) / wall, 3),
        throttled=round((after.throttled - before.throttled) / wall, 3),
    )


def disturbances(contention: Contention, threads: int) -> list[str]:
    """What of it is too much for contenders that run so many threads."""
    found = []
    if contention.others > contention.cores - threads + MOST_OTHERS:
        found.append(f"other programs took {contention.others:.1f} of {contention.cores} cores")
    if contention.stolen > MOST_STOLEN * contention.cores:
        found.append(f"the host took {contention.stolen:.2f} of {contention.cores} cores away")
    if contention.throttled > MOST_STOLEN * threads:
        found.append(f"the container's CPU quota held back {contention.throttled:.2f} of {threads} threads")
    return found
