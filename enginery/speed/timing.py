"""Timing contenders against each other so that a shared, drifting machine cannot favour one of them."""

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginery.core.progress import progress
from enginery.speed.records import SAME_PACE, WARM_UP_AGREEMENT

Contender = Callable[[], object]  # may return the seconds of its compute alone
Point = Mapping[str, Contender]  # who races whom, such as all at one batch size
MOST_ROUNDS, FEWEST_ROUNDS = 20, 6  # a median of fewer than six ratios has no 95 % interval
WARM_UP_RUNS = 5
RESAMPLES = 4000


class Call(NamedTuple):
    """Seconds by the host's clock, start to result; and of the compute alone, where a device can tell."""

    seconds: float
    compute: float | None


class Round(NamedTuple):
    """Every contender's turn, and how fast the machine was meanwhile: the less, the better the pace."""

    turns: Mapping[str, list[Call]]
    pace: float


class WarmUp(NamedTuple):
    """Seconds of one call at its end, and by what share its last two windows differed."""

    seconds: float
    unrest: float


@dataclass(frozen=True)
class Timings:
    """All rounds of one point, and how each contender was warmed up for them."""

    rounds: Sequence[Round]
    warm_ups: Mapping[str, WarmUp] = field(default_factory=dict)

    def all(self, contender: str) -> list[Call]:
        return [call for each in self.rounds for call in each.turns[contender]]

    def ratios(self, baseline: str, contender: str) -> NDArray[np.float64]:
        """Per round, how many times faster the contender is: what drifts between rounds cancels within one."""
        return np.array([middle(each.turns[baseline]) / middle(each.turns[contender]) for each in self.rounds])

    def at(self, pace: float) -> "Timings":
        return replace(self, rounds=[each for each in self.rounds if pace <= each.pace <= SAME_PACE * pace])


def race(
    points: Sequence[Point],
    seconds: float,
    pace: Callable[[], float],
    rng: np.random.Generator,
    label: str,
    watches: Iterable[AbstractContextManager[object]] = (),
) -> list[Timings]:
    """Rounds of all points in turns, so that each point sees the machine over the whole race.

    Each contender gets about `seconds` per point, and up to twice that while the machine is slower than it can be.
    `watches` look at the machine while the rounds last: what compiles before them is nobody's disturbance.
    """
    warm_ups = [{name: warm_up(contender, seconds / 2) for name, contender in point.items()} for point in points]
    wanted = [rounds_for(each, seconds) for each in warm_ups]
    done: list[list[Round]] = [[] for _ in points]

    def missing() -> list[int]:
        """How many rounds each point lacks, as far as one can tell: a disturbed one has to be made up for."""
        best = min((each.pace for rounds in done for each in rounds), default=0.0)
        steady = [len(Timings(rounds).at(best).rounds) for rounds in done]
        return [
            max(0, min(want - good, 2 * want - len(rounds)))
            for want, good, rounds in zip(wanted, steady, done, strict=True)
        ]

    def unfinished() -> list[int]:
        return [at for at, lacking in enumerate(missing()) if lacking]

    with ExitStack() as watching:
        watching.enter_context(_no_garbage_collection())
        for watch in watches:
            watching.enter_context(watch)
        for waiting in progress(iter(unfinished, []), label, lambda: max(missing()), "rounds"):
            for at in waiting:
                done[at].append(take_round(points[at], seconds / wanted[at], pace, rng))
    return [Timings(rounds, each) for rounds, each in zip(done, warm_ups, strict=True)]


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def rounds_for(warm_ups: Mapping[str, WarmUp], seconds: float) -> int:
    slowest = max(each.seconds for each in warm_ups.values())
    # A turn is a discarded call, which pays for the caches and threads that the last contender left, and counted ones.
    return int(np.clip(seconds / (2 * slowest), FEWEST_ROUNDS, MOST_ROUNDS))


def warm_up(contender: Contender, most_seconds: float) -> WarmUp:
    """Run until two windows in a row agree, or the time is up; the first call, which may compile, is not of it."""
    contender()
    deadline = time.perf_counter() + most_seconds
    before = middle(window(contender, most_seconds / 2))
    while True:
        now = middle(window(contender, most_seconds / 2))
        unrest = abs(now - before) / now
        if unrest <= WARM_UP_AGREEMENT or time.perf_counter() > deadline:
            return WarmUp(now, unrest)
        before = now


def window(contender: Contender, seconds: float) -> list[Call]:
    """Fewer calls where they take long, down to one."""
    calls = [time_call(contender)]
    while len(calls) < WARM_UP_RUNS and sum(call.seconds for call in calls) < seconds:
        calls.append(time_call(contender))
    return calls


def take_round(point: Point, seconds: float, pace: Callable[[], float], rng: np.random.Generator) -> Round:
    """A turn for everyone, in an order drawn anew; the pace is the worse of before and after."""
    names = list(point)
    before = pace()
    turns = {names[at]: take_turn(point[names[at]], seconds) for at in rng.permutation(len(names))}
    return Round(turns, max(before, pace()))


def take_turn(contender: Contender, seconds: float) -> list[Call]:
    """The first call, which is discarded, can take the whole turn where a new shape is prepared for; the counted ones
    get half a turn at least."""
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
    """The best pace that every point saw in enough rounds; None if the machine never kept to one."""
    paces = sorted(each.pace for point in timings for each in point.rounds)
    return next((pace for pace in paces if all(len(point.at(pace).rounds) >= FEWEST_ROUNDS for point in timings)), None)


def middle(calls: Sequence[Call]) -> float:
    return median(call.seconds for call in calls)


def median_interval(values: NDArray[np.float64], confidence: float, rng: np.random.Generator) -> tuple[float, float]:
    """A percentile bootstrap interval of the median."""
    resampled = np.median(rng.choice(values, size=(RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
