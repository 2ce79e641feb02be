"""Timing contenders against each other so that a shared, drifting machine cannot favour one of them."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Contender = Callable[[], object]  # may return the seconds of its compute alone
MOST_ROUNDS, FEWEST_ROUNDS = 20, 6  # a median of fewer than six ratios has no 95 % interval
WARM_UP_RUNS, WARM_UP_AGREEMENT = 5, 0.05
RESAMPLES = 4000


class Call(NamedTuple):
    """Seconds by the host's clock, start to result; and of the compute alone, where a device can tell."""

    seconds: float
    compute: float | None


@dataclass(frozen=True)
class Timings:
    """Every call: contender, then round, then call."""

    rounds: Mapping[str, list[list[Call]]]

    def all(self, contender: str) -> list[Call]:
        return [call for calls in self.rounds[contender] for call in calls]

    def ratios(self, baseline: str, contender: str) -> NDArray[np.float64]:
        """Per round, how many times faster the contender is: what drifts between rounds cancels within one."""
        pairs = zip(self.rounds[baseline], self.rounds[contender], strict=True)
        return np.array([middle(slow) / middle(fast) for slow, fast in pairs])


def race(contenders: Mapping[str, Contender], seconds: float, rng: np.random.Generator) -> Timings:
    """Rounds in which every contender has a turn, in an order drawn anew; about `seconds` for each contender."""
    slowest = max(warm_up(contender, seconds / 2) for contender in contenders.values())
    # A turn is a discarded call, which pays for the caches and threads that the last contender left, and counted ones.
    rounds = int(np.clip(seconds / (2 * slowest), FEWEST_ROUNDS, MOST_ROUNDS))
    timings: dict[str, list[list[Call]]] = {name: [] for name in contenders}
    names = list(contenders)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for _ in range(rounds):
            for position in rng.permutation(len(names)):
                name = names[position]
                timings[name].append(take_turn(contenders[name], seconds / rounds))
    finally:
        if was_enabled:
            gc.enable()
    return Timings(timings)


def warm_up(contender: Contender, most_seconds: float) -> float:
    """Run until two windows in a row agree, or the time is up. Returns the seconds of one call."""
    deadline = time.perf_counter() + most_seconds
    before = float("inf")
    while True:
        now = middle([time_call(contender) for _ in range(WARM_UP_RUNS)])
        if abs(now - before) <= WARM_UP_AGREEMENT * now or time.perf_counter() > deadline:
            return now
        before = now


def take_turn(contender: Contender, seconds: float) -> list[Call]:
    deadline = time.perf_counter() + seconds
    contender()
    calls = [time_call(contender)]
    while time.perf_counter() < deadline:
        calls.append(time_call(contender))
    return calls


def time_call(contender: Contender) -> Call:
    started = time.perf_counter()
    compute = contender()
    seconds = time.perf_counter() - started
    return Call(seconds, compute if isinstance(compute, float) else None)


def middle(calls: Sequence[Call]) -> float:
    return median(call.seconds for call in calls)


def median_interval(values: NDArray[np.float64], confidence: float, rng: np.random.Generator) -> tuple[float, float]:
    """A percentile bootstrap interval of the median."""
    resampled = np.median(rng.choice(values, size=(RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
