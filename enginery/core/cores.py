"""How many cores this process may use: fewer than there are by its affinity, or by the quota of its container."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
UNITS = {"throttled_usec": 1e6, "throttled_time": 1e9}  # of the second version of control groups, and of the first


def usable_cores() -> int:
    """Whole ones: the quota would stop the thread that is one too many, and all others wait for it."""
    quota = min(map(_quota, _groups()), default=math.inf)
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota)))


def throttled_seconds() -> float:
    """How long quotas have stopped this process and its neighbours in the container, summed over cores."""
    return sum(map(_throttled, _groups()))


def _groups() -> Iterator[Path]:
    """The group that this process is in and those around it, each with a quota of its own; in a container, the root."""
    try:
        lines = OWN.read_text().splitlines()
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
        quota, period = (group / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError):
        quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return math.inf if int(quota) < 0 else int(quota) / int(period)
    return math.inf


def _throttled(group: Path) -> float:
    with suppress(OSError):
        told = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
        return sum(int(told[name]) / unit for name, unit in UNITS.items() if name in told)
    return 0.0
