"""Time contenders against each other so that a shared, drifting machine favours none of them."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.core.progress import progress
from enginewright.speed.records import SAME_PACE, WARM_UP_AGREEMENT

Contender = Callable[[], object]  # one inference; may return the seconds of the compute without the copies
Point = Mapping[str, Contender]  # contenders that race each other by name, for example all at one batch size
MOST_ROUNDS, FEWEST_ROUNDS = 20, 6  # a median of fewer than six ratios has no 95 % interval
WARM_UP_RUNS = 5
RESAMPLES = 4000


class Call(NamedTuple):
    """The seconds of one call by the host's clock, and those of the compute without copies if a device measured it."""

    seconds: float
    compute: float | None


class Round(NamedTuple):
    """The turns of all contenders in one round, and the machine pace meanwhile: the seconds of a fixed piece of work. A
    smaller pace means a faster machine: see machine_pace.py."""

    turns: Mapping[str, list[Call]]
    pace: float


class WarmUp(NamedTuple):
    """The seconds of one call at the end of a warm-up, and the share by which its last two windows differed."""

    seconds: float
    drift: float


@dataclass(frozen=True)
class Timings:
    """All rounds of one point, and how each contender's warm-up ended."""

    rounds: Sequence[Round]
    warm_ups: Mapping[str, WarmUp] = field(default_factory=dict)

    def calls_of(self, contender: str) -> list[Call]:
        return [call for each in self.rounds for call in each.turns[contender]]

    def ratios(self, baseline: str, contender: str) -> NDArray[np.float64]:
        """Return for each round how many times faster the contender is. Drift between rounds cancels within one."""
        turns = [(each.turns[baseline], each.turns[contender]) for each in self.rounds]
        return np.array([median_seconds(one) / median_seconds(other) for one, other in turns])

    def at_pace(self, pace: float) -> "Timings":
        """Return the rounds at this machine pace only."""
        return replace(self, rounds=[each for each in self.rounds if pace <= each.pace <= SAME_PACE * pace])


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
    wanted = [int(np.clip(seconds / (2 * call), FEWEST_ROUNDS, MOST_ROUNDS)) for call in slowest]
    done: list[list[Round]] = [[] for _ in points]

    def unfinished() -> list[int]:
        return [number for number, missing in enumerate(rounds_missing(done, wanted)) if missing]

    with ExitStack() as opened:
        if gc.isenabled():
            opened.callback(gc.enable)
            gc.disable()
        for watch in watches:
            opened.enter_context(watch)
        rounds_left = progress(iter(unfinished, []), label, lambda: max(rounds_missing(done, wanted)), "rounds")
        for numbers in rounds_left:
            for number in numbers:
                done[number].append(take_round(points[number], seconds / wanted[number], read_pace, rng))
    return [Timings(rounds, each) for rounds, each in zip(done, warm_ups, strict=True)]


def rounds_missing(done: Sequence[Sequence[Round]], wanted: Sequence[int]) -> list[int]:
    """Return how many rounds each point still lacks at the best pace so far. A round on a slower machine is made up for
    by another one, up to twice the wanted number."""
    best = min((each.pace for rounds in done for each in rounds), default=0.0)
    counts = [(len(Timings(rounds).at_pace(best).rounds), len(rounds)) for rounds in done]
    return [max(0, min(want - good, 2 * want - ran)) for want, (good, ran) in zip(wanted, counts, strict=True)]


def warm_up(contender: Contender, most_seconds: float) -> WarmUp:
    """Run until two windows in a row agree or the time is up. The first call is in no window: it may compile."""
    contender()
    deadline = time.perf_counter() + most_seconds
    before = median_seconds(time_window(contender, most_seconds / 2))
    while True:
        now = median_seconds(time_window(contender, most_seconds / 2))
        drift = abs(now - before) / now
        if drift <= WARM_UP_AGREEMENT or time.perf_counter() > deadline:
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
    """Time calls for the seconds of a turn, after one that is not counted. The first call pays for the caches and
    threads that the contender before left. If it also prepares a new shape, it can take the whole turn; so the counted
    calls get at least half a turn."""
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
    """Return the percentile bootstrap interval of the median."""
    resampled = np.median(rng.choice(values, size=(RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
