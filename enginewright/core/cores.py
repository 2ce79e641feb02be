"""Use the cores that this process may use, of which affinity or a container's quota may leave few, or a cluster."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, Protocol, TypeVar

from typing_extensions import Self

from enginewright.core.text import counted

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 4  # items for each core that may be in work, or done and not yet taken
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
THROTTLED = {"throttled_usec": 1e6, "throttled_time": 1e9}  # ticks per second, in control groups of version 2 and 1
STAT = Path("/proc/stat")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
THREADS = "OMP_NUM_THREADS"
FEW = 0.5  # cores: less is not worth a word


class Usage(NamedTuple):
    """Seconds of processor time since some start, summed over cores; `wall` is plain time."""

    wall: float
    busy: float
    stolen: float
    own: float
    throttled: float  # while quotas stopped this process and its neighbours in the container

    def others_until(self, later: "Usage") -> float:
        """Return how many cores other programs have taken in between."""
        wall = max(later.wall - self.wall, 1 / TICKS_PER_SECOND)
        return max(0.0, ((later.busy - self.busy) - (later.own - self.own)) / wall)


def usable_cores() -> int:
    """Return how many whole cores may be used: a thread beyond the quota is stopped, and all others wait for it."""
    quota = min(map(_quota, _groups()), default=math.inf)
    return max(1, math.floor(min(len(os.sched_getaffinity(0)), quota)))


def share_cores() -> None:
    """Let the threads of PyTorch and NumPy, which must not be loaded yet, sleep while they wait for each other, and be
    as many as `usable_cores`. They would spin, so that all of them stall where one shares its core with a program.
    Their number does not follow how busy others are: sums, and with them trained weights, would differ in last bits."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault(THREADS, str(usable_cores()))


def working_threads() -> int:
    """Return how many threads take part in work that is not timed: what the user says to PyTorch, or all cores."""
    given = os.environ.get(THREADS, "").partition(",")[0].strip()
    return int(given) if given.isdecimal() and int(given) else usable_cores()


def threads_in_words(before: Usage) -> str | None:
    """Say how many threads work, if they share cores with other programs or are fewer than the cores."""
    others, cores, threads = before.others_until(read_usage()), usable_cores(), working_threads()
    if others < FEW and threads == cores:
        return None
    shared = f"; other programs keep {others:.1f} of them busy" if others >= FEW else ""
    return f"{counted(threads, 'thread')} for {counted(cores, 'core')}{shared}"


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
        throttled=sum(map(_throttled, _groups())),
    )


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item], cores: int = 0) -> Iterator[Result]:
    """Yield the results in order, and work only a few items ahead: Executor.map would keep all results in memory.
    0 cores are as many as `working_threads`."""
    cores = cores or working_threads()
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
    """Yield the control group of this process, in a container the root, and of those around it: each has a quota."""
    if not OWN_GROUPS.is_file():  # a kernel without control groups, or a sandbox that hides them
        return
    for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines():
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
        return sum(int(counters[name]) / ticks for name, ticks in THROTTLED.items() if name in counters)
    return 0.0


# Work is done part by part: here, or as tasks of a cluster. The functions and the order of the results are the same.


class Piece(Protocol):
    def packed(self) -> Self:
        """Return the part with all that it needs in memory, so that it can be sent to another machine."""
        ...


AnyPart = TypeVar("AnyPart", bound=Piece)


@dataclass(frozen=True, kw_only=True)
class Work(Generic[AnyPart, Result]):
    """Some work that is done with each part. A field of a subclass that is a Path names a file or a folder which goes
    along to other machines, and so do the modules `code`, by their places in a folder that Python imports from."""

    code: Mapping[str, Path] = field(default_factory=dict)
    gpus: int = 0

    def open(self, threads: int) -> AbstractContextManager[Callable[[AnyPart], Result]]:
        """Open what is costly, such as a session, once for many parts. 0 threads are one for each core."""
        raise NotImplementedError


class Cluster(Protocol):
    def do(self, work: Work[AnyPart, Result], parts: Iterable[AnyPart]) -> Iterator[Result]: ...


def spread(work: Work[AnyPart, Result], parts: Iterable[AnyPart], cluster: Cluster | None) -> Iterator[Result]:
    """Yield the result of each part, in order. Without a cluster, this is a plain loop."""
    if cluster is not None:
        yield from cluster.do(work, parts)
        return
    with work.open(threads=0) as do:
        yield from map(do, parts)
