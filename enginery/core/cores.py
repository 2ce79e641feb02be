"""Count the cores that this process may use, of which affinity or a container's quota may leave few, and use them."""

import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 4  # items for each core that may be in work, or done and not yet taken
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
TICKS_PER_SECOND = {"throttled_usec": 1e6, "throttled_time": 1e9}  # by the name in control groups of version 2 and 1


def usable_cores() -> int:
    """Return how many whole cores may be used: a thread beyond the quota is stopped, and all others wait for it."""
    quota = min(map(_quota, _groups()), default=math.inf)
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota)))


def throttled_seconds() -> float:
    """Return how long quotas have stopped this process and its neighbours in the container, summed over cores."""
    return sum(map(_throttled, _groups()))


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], cores: int = 0) -> Iterator[Result]:
    """Yield the results in order, and work only a few items ahead: Executor.map would keep all results in memory.
    0 cores are all."""
    cores = cores or usable_cores()
    pool, waiting = ThreadPoolExecutor(cores), deque[Future[Result]]()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # without waiting: after an error, one of these very threads may be what collects the generator
        pool.shutdown(wait=False, cancel_futures=True)


def _groups() -> Iterator[Path]:
    """Yield the control group of this process and the groups around it: each has its own quota.

    In a container, the own group is the root.
    """
    try:
        lines = OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:  # a kernel without control groups, or a sandbox that hides them
        return
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        root = GROUPS / "cpu" if controllers else GROUPS
        inner = root / place.strip("/")
        yield from (group for group in (inner, *inner.parents) if group.is_relative_to(root))


def _quota(group: Path) -> float:
    with suppress(OSError):
        quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text(encoding="utf-8") for name in ("quota", "period"))
        return math.inf if int(quota) < 0 else int(quota) / int(period)
    return math.inf


def _throttled(group: Path) -> float:
    with suppress(OSError):
        counters = dict(line.split() for line in (group / "cpu.stat").read_text(encoding="utf-8").splitlines())
        return sum(int(counters[name]) / ticks for name, ticks in TICKS_PER_SECOND.items() if name in counters)
    return 0.0
