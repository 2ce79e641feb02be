"""Race all engines and the first baseline in turns. This race alone decides which engine is the fastest: ratios to a
baseline that were taken at different times do not tell."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from itertools import combinations
from typing import NamedTuple

import numpy as np
from pydantic import PositiveFloat

from enginewright.core.params.benchmark import BenchmarkParams
from enginewright.core.record import Record
from enginewright.data.feeds import Feeds
from enginewright.speed.timing import Contender, Round, Timings, median_interval, median_seconds, race

LAPS = 4  # each opens all anew: a copy of an engine is up to 3 % faster or slower for as long as it is open
COPY_NOISE = 0.014  # the standard deviation that this leaves in the ratio of two copies in one lap
Open = Callable[[], AbstractContextManager[Callable[[Feeds], Contender]]]


class Times(NamedTuple):
    """How many times as fast one contender is as another, with an interval."""

    median: float
    low: float
    high: float


class Pair(Record):
    """How many times as fast `one` is as `other`."""

    one: str
    other: str
    median: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat


class EnginesRace(Record):
    """All engines beside each other at one batch size; race.json."""

    batch: int
    baseline: str
    threads: int
    confidence: float
    rounds: int
    milliseconds: dict[str, float]  # the median of each contender, with copies to a device and back
    pairs: tuple[Pair, ...]  # any two contenders once
    disturbed: tuple[str, ...] = ()  # what took the machine meanwhile

    def times(self, one: str, other: str) -> Times:
        for pair in self.pairs:
            if (pair.one, pair.other) == (one, other):
                return Times(pair.median, pair.low, pair.high)
            if (pair.one, pair.other) == (other, one):
                return Times(1 / pair.median, 1 / pair.high, 1 / pair.low)
        return Times(1.0, 1.0, 1.0)


def race_engines(
    openers: Mapping[str, Open], baseline: str, feeds: Feeds, batch: int, params: BenchmarkParams, threads: int
) -> EnginesRace:
    """Race them in laps, in which each is opened earlier than others as often as later."""
    rng, names, rounds = np.random.default_rng(params.seed), list(openers), list[Round]()
    for lap in range(LAPS):
        order = names[lap:] + names[:lap]
        with ExitStack() as opened:
            point = {name: opened.enter_context(openers[name]())(feeds) for name in order[:: 1 - 2 * (lap % 2)]}
            label = f"race, lap {lap + 1} of {LAPS}"
            (timings,) = race([point], params.seconds / LAPS, lambda: 0.0, rng, label)
        rounds += timings.rounds
    whole = Timings(rounds)
    return EnginesRace(
        batch=batch,
        baseline=baseline,
        threads=threads,
        confidence=params.confidence,
        rounds=len(rounds),
        milliseconds={name: 1000 * median_seconds(whole.calls_of(name)) for name in names},
        pairs=tuple(_pair(one, other, whole, params.confidence, rng) for one, other in combinations(names, 2)),
    )


def _pair(one: str, other: str, timings: Timings, confidence: float, rng: np.random.Generator) -> Pair:
    ratios = timings.ratios(other, one)
    middle, (low, high) = float(np.median(ratios)), median_interval(ratios, confidence, rng)
    copies = 2 * COPY_NOISE / math.sqrt(LAPS)  # two standard deviations
    return Pair(
        one=one,
        other=other,
        median=middle,
        low=middle / math.exp(math.hypot(math.log(middle / low), copies)),
        high=middle * math.exp(math.hypot(math.log(high / middle), copies)),
    )
