"""Whether others took the processor while something was timed: other programs, or the host of a virtual machine."""

import os
import time
from pathlib import Path
from typing import NamedTuple

from enginery.core.records import Contention

STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Usage(NamedTuple):
    """Seconds since some beginning; but for `wall`, summed over all processors."""

    wall: float
    busy: float
    stolen: float
    own: float


def usage() -> Usage:
    total = STAT.read_text().split("\n", 1)[0]
    user, nice, system, _, _, interrupts, soft_interrupts, stolen, *_ = map(int, total.split()[1:])
    return Usage(
        wall=time.perf_counter(),
        busy=(user + nice + system + interrupts + soft_interrupts) / TICKS_PER_SECOND,
        stolen=stolen / TICKS_PER_SECOND,
        own=time.process_time(),
    )


def contention(batch: int, before: Usage, after: Usage) -> Contention:
    wall = max(after.wall - before.wall, 1 / TICKS_PER_SECOND)
    others = (after.busy - before.busy) - (after.own - before.own)
    return Contention(
        batch=batch,
        cores=os.cpu_count() or 1,
        others=max(0.0, round(others / wall, 3)),
        stolen=round((after.stolen - before.stolen) / wall, 3),
    )
