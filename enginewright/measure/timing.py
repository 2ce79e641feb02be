"""Time contenders against each other so that a shared, drifting machine favours none of them, and tell what disturbed
them: other programs, the host of a virtual machine, a quota, clocks."""

import fcntl
import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Self

from enginewright.core.cores import TICKS_PER_SECOND, Usage, read_usage
from enginewright.core.progress import progress
from enginewright.core.text import counted, printable
from enginewright.data.feeds import Feeds, middle_of
from enginewright.measure import records

Contender = Callable[[], object]  # one inference; may return the seconds of the compute without the copies
Bind = Callable[[Feeds], Contender]
Point = Mapping[str, Contender]  # contenders that race each other by name, for example all at one batch size
MOST_ROUNDS, FEWEST_ROUNDS = 20, 6  # a median of fewer than six ratios has no 95 % interval
TOO_LONG = 4  # times the seconds that are asked for: calls grew far slower than they were when rounds were counted
WARM_UP_RUNS = 5
RESAMPLES = 4000
ATTEMPTS, ELEMENTS, TIMES = 3, 32768, 20  # of the work that tells the machine pace


class Call(NamedTuple):
    """The seconds of one call by the host's clock, and those of the compute without copies if a device measured it."""

    seconds: float
    compute: float | None


class Round(NamedTuple):
    turns: Mapping[str, list[Call]]  # of all contenders
    pace: float  # of the machine meanwhile: the seconds of a fixed piece of work, as contenders.py has it


class WarmUp(NamedTuple):
    seconds: float  # of one call at its end
    drift: float  # the share by which its last two windows differed


@dataclass(frozen=True)
class Timings:
    rounds: Sequence[Round]
    warm_ups: Mapping[str, WarmUp] = field(default_factory=dict)

    def calls_of(self, contender: str) -> list[Call]:
        return [call for each in self.rounds for call in each.turns[contender]]

    def ratios(self, baseline: str, contender: str) -> NDArray[np.float64]:
        """Return for each round how many times faster the contender is. Drift between rounds cancels within one."""
        turns = [(each.turns[baseline], each.turns[contender]) for each in self.rounds]
        return np.array([median_seconds(one) / median_seconds(other) for one, other in turns])

    def factor(self, contender: str, baseline: str, confidence: float, rng: np.random.Generator) -> records.Factor:
        ratios = self.ratios(baseline, contender)
        return records.Factor(float(np.median(ratios)), *median_interval(ratios, confidence, rng))

    def at_pace(self, pace: float) -> "Timings":
        return replace(self, rounds=[each for each in self.rounds if pace <= each.pace <= records.SAME_PACE * pace])


def race(
    points: Sequence[Point],
    seconds: float,
    read_pace: Callable[[], float],
    rng: np.random.Generator,
    label: str,
    watches: Iterable[AbstractContextManager[object]] = (),
) -> list[Timings]:
    """Run rounds of all points in turns, so that each point sees the machine over the whole race. Each contender gets
    about `seconds` per point, and up to twice that while the machine is slower than at its best. `watches` are open
    during the rounds only: what compiles before them must not count as a disturbance."""
    warm_ups = [{name: warm_up(contender, seconds / 2) for name, contender in point.items()} for point in points]
    slowest = [max(each.seconds for each in point.values()) for point in warm_ups]
    # A turn has at least two calls, of which the first is not counted.
    enough = [int(np.clip(seconds / (2 * call), FEWEST_ROUNDS, MOST_ROUNDS)) for call in slowest]
    done: list[list[Round]] = [[] for _ in points]
    late = time.perf_counter() + TOO_LONG * seconds * sum(map(len, points))

    def unfinished() -> list[int]:
        least = FEWEST_ROUNDS if time.perf_counter() > late else max(enough) * 2
        missing = rounds_missing(done, enough)
        return [number for number, rounds in enumerate(done) if missing[number] and len(rounds) < least]

    with ExitStack() as opened:
        if gc.isenabled():
            opened.callback(gc.enable)
            gc.disable()
        for watch in watches:
            opened.enter_context(watch)
        rounds_left = progress(iter(unfinished, []), label, lambda: max(rounds_missing(done, enough)), "rounds")
        for numbers in rounds_left:
            for number in numbers:
                done[number].append(take_round(points[number], seconds / enough[number], read_pace, rng))
    return [Timings(rounds, each) for rounds, each in zip(done, warm_ups, strict=True)]


def rounds_missing(done: Sequence[Sequence[Round]], enough: Sequence[int]) -> list[int]:
    """Return how many rounds each point lacks at the best pace so far, up to twice as many as are enough."""
    best = min((each.pace for rounds in done for each in rounds), default=0.0)
    counts = [(len(Timings(rounds).at_pace(best).rounds), len(rounds)) for rounds in done]
    return [max(0, min(want - good, 2 * want - ran)) for want, (good, ran) in zip(enough, counts, strict=True)]


def warm_up(contender: Contender, most_seconds: float) -> WarmUp:
    """Run until two windows in a row agree or the time is up. The first call is in no window: it may compile."""
    contender()
    deadline = time.perf_counter() + most_seconds
    before = median_seconds(time_window(contender, most_seconds / 2))
    while True:
        now = median_seconds(time_window(contender, most_seconds / 2))
        drift = abs(now - before) / now
        if drift <= records.WARM_UP_AGREEMENT or time.perf_counter() > deadline:
            return WarmUp(now, drift)
        before = now


def time_window(contender: Contender, seconds: float) -> list[Call]:
    """Time a few calls, and at least one; fewer if the seconds are over."""
    calls = [time_call(contender)]
    while len(calls) < WARM_UP_RUNS and sum(call.seconds for call in calls) < seconds:
        calls.append(time_call(contender))
    return calls


def take_round(point: Point, seconds: float, read_pace: Callable[[], float], rng: np.random.Generator) -> Round:
    """Give each contender a turn, in a new random order. The pace is the slower one of before and after."""
    names, before = list(point), read_pace()
    turns = {names[number]: take_turn(point[names[number]], seconds) for number in rng.permutation(len(names))}
    return Round(turns, max(before, read_pace()))


def take_turn(contender: Contender, seconds: float) -> list[Call]:
    """Time calls for the seconds of a turn, after one that pays for the caches and threads that the contender before
    left. If that one also prepares a new shape, it can take the whole turn; so the others get at least half a turn."""
    started = time.perf_counter()
    contender()
    deadline = max(started + seconds, time.perf_counter() + seconds / 2)
    calls = [time_call(contender)]
    while time.perf_counter() < deadline:
        calls.append(time_call(contender))
    return calls


def time_call(contender: Contender) -> Call:
    started = time.perf_counter()
    compute = contender()
    seconds = time.perf_counter() - started
    return Call(seconds, compute if isinstance(compute, float) else None)


def best_common_pace(timings: Sequence[Timings]) -> float | None:
    """Return the best machine pace that every point saw in enough rounds, or None if there is no such pace."""
    paces = sorted(each.pace for point in timings for each in point.rounds)
    fewest = ((pace, min(len(point.at_pace(pace).rounds) for point in timings)) for pace in paces)
    return next((pace for pace, rounds in fewest if rounds >= FEWEST_ROUNDS), None)


def median_seconds(calls: Sequence[Call]) -> float:
    return median(call.seconds for call in calls)


def median_interval(values: NDArray[np.float64], confidence: float, rng: np.random.Generator) -> tuple[float, float]:
    return middle_of(np.median(rng.choice(values, size=(RESAMPLES, len(values))), axis=1), confidence)


NAME = "enginewright-timing.lock"  # the same for all users and projects of the machine


@contextmanager
def whole_machine(who: str) -> Iterator[None]:
    """Wait until nothing else of Enginewright is timed on this machine. The lock ends with the process in any case."""
    path = Path(tempfile.gettempdir()) / NAME
    try:  # Linux refuses O_CREAT for a file of another user in /tmp
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        os.fchmod(descriptor, 0o666)  # whatever the umask says
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            other = printable(os.pread(descriptor, 1000, 0).decode(errors="replace")) or "another process"
            print(f"{who} waits until {other} has timed its engines on this machine", file=sys.stderr, flush=True)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} in {Path.cwd()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


MOST_OTHERS, MOST_STOLEN = 0.15, 0.02  # cores; a machine that nothing else used stayed below both


class ContentionWatch:
    """Measure what others took of the processor while this context was open: afterwards, `contention` has it."""

    contention: records.Contention

    def __enter__(self) -> Self:
        self._before = read_usage()
        return self

    def __exit__(self, *_: object) -> None:
        self.contention = contention_between(self._before, read_usage())


def contention_between(before: Usage, after: Usage) -> records.Contention:
    wall = max(after.wall - before.wall, 1 / TICKS_PER_SECOND)
    return records.Contention(
        cores=len(os.sched_getaffinity(0)),
        others=round(before.others_until(after), 3),
        stolen=round((after.stolen - before.stolen) / wall, 3),
        throttled=round((after.throttled - before.throttled) / wall, 3),
    )


def contention_problems(contention: records.Contention, threads: int) -> list[str]:
    """Return a sentence for each kind of contention that is too much for contenders with so many threads."""
    found = []
    if contention.others > contention.cores - threads + MOST_OTHERS:
        found.append(f"other programs took {contention.others:.1f} of {contention.cores} cores")
    if contention.stolen > MOST_STOLEN * contention.cores:
        found.append(f"the host took {contention.stolen:.2f} of {contention.cores} cores away")
    if contention.throttled > MOST_STOLEN * threads:
        found.append(f"the container's CPU quota held back {contention.throttled:.2f} of {counted(threads, 'thread')}")
    return found


# A virtual machine with two cores that nothing else used stayed within these limits.
WIDEST_INTERVAL, WIDEST_SPREAD, MOST_OUTLIERS, STEADY_CLOCK = 0.1, 0.15, 0.05, 0.95

# A slow or busy machine changes ratios by less, all batch sizes together: those of four runs of one engine were at most
# 1.2 times apart.
LARGEST_MACHINE_EFFECT = 1.5


def machine_problems(timed: records.Benchmark) -> list[str]:
    """Return a sentence for each thing that disturbed the machine: other programs, the host, or the GPU's clocks."""
    gpu, found = timed.gpu, contention_problems(timed.contention, timed.threads)
    if gpu and gpu.clock_low < STEADY_CLOCK * gpu.clock_high:
        found.append(f"the GPU's clock moved between {gpu.clock_low} and {gpu.clock_high} MHz")
    if gpu and gpu.throttled:
        found.append(f"the GPU was throttled: {', '.join(gpu.throttled)}")
    return found


def broken_limits(ratio: records.Ratio, benchmark: records.Benchmark) -> list[str]:
    """Return a sentence for each limit that the interval of a ratio breaks, or the calls of its two sides."""
    title = records.baseline_title(ratio.baseline)
    interval = (ratio.high - ratio.low) / ratio.median
    found = [(f"the interval of the ratio to {title} is {interval:.0%} of it", interval > WIDEST_INTERVAL)]
    owners = {records.ENGINE: "the engine's", ratio.baseline: f"{title}'s"}
    for side in benchmark.latencies:
        if side.batch == ratio.batch and (owner := owners.get(side.contender)):
            scatter = f"the middle half of {owner} calls spreads over {side.spread:.0%}"
            slow = f"{side.outliers:.0%} of {owner} calls took over twice as long as most"
            unsettled = f"{owner} warm-up had not settled: its last two windows differed by {side.warm_up_drift:.0%}"
            found += [
                (scatter, side.spread > WIDEST_SPREAD),
                (slow, side.outliers > MOST_OUTLIERS),
                (unsettled, side.warm_up_drift > records.WARM_UP_AGREEMENT),
            ]
    return [sentence for sentence, is_broken in found if is_broken]


def pace_of_numpy() -> float:
    """Return the seconds of one unit of work on a core: the pace where PyTorch is not installed. It takes one thread,
    since those of numpy's products wait for each other for long on a busy machine."""
    numbers = np.ones(ELEMENTS, np.float32)
    return fastest(lambda: seconds_of_one(lambda: np.sqrt(numbers, out=numbers), TIMES))


def fastest(read: Callable[[], float]) -> float:
    """Return the fastest of a few readings: a short interruption makes one of them slower, not the machine."""
    return min(read() for _ in range(ATTEMPTS))


def seconds_of_one(work: Callable[[], object], times: int) -> float:
    """Return how long some work takes that is done so many times, after once."""
    work()
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times
