"""Race all engines and the first baseline in turns. This race alone decides which engine is the fastest: ratios to a
baseline that were taken at different times do not tell."""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import numpy as np
from pydantic import PositiveFloat

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import VALIDATION_SAMPLES, Record
from enginewright.core.params.all import Params
from enginewright.core.params.build import InferenceParams
from enginewright.core.params.measuring import BenchmarkParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import Machine, require_fits
from enginewright.engine.record import RECORD, EngineRecord, read_engine
from enginewright.engine.this_machine import describe_machine
from enginewright.measure.changes import SIDE_BY_SIDE
from enginewright.measure.speed_change import SpeedChange, SpeedChanges, combine, standard_error
from enginewright.measure.timing import Bind, Round, Timings, median_interval, median_seconds, race, whole_machine

LAPS = 4  # each opens all anew: a copy of an engine is up to 3 % faster or slower for as long as it is open
COPY_NOISE = 0.014  # the standard deviation that this leaves in the ratio of two copies in one lap
Open = Callable[[], AbstractContextManager[Bind]]


@contextmanager
def open_contender(folder: Path, machine: Machine, inference: InferenceParams) -> Iterator[Bind]:
    """Open the engine in a folder, and return what binds feeds."""
    with open_engine(folder, machine, inference) as engine:
        yield engine.bind


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


# Race two sides in laps, which open them anew: a copy of an engine is faster or slower for as long as it is open.

BEFORE, AFTER = "before", "after"
# One engine that is opened twice in a process is up to 3 % faster in one copy than in the other for as long as both are
# open, and mostly the first copy is the slower one. So each lap opens each side twice, and laps take these orders in
# turns: no side is opened earlier than the other on average.
OPENING_ORDERS = ((BEFORE, AFTER, AFTER, BEFORE), (AFTER, BEFORE, BEFORE, AFTER))
LAP_NOISE = 0.01  # the standard deviation that this leaves in one lap: see benchmarks/alarm.py
FEWEST_LAPS, MOST_LAPS = 4, 16
SMALL_ERROR = 0.004  # with this standard error over all batch sizes a change of 5 % is seen, and the race ends


def race_sides(sides: Mapping[str, Open], samples: SampleSet, params: BenchmarkParams, label: str) -> SpeedChanges:
    """Run laps in pairs until the standard error is small, or MOST_LAPS."""
    rng = np.random.default_rng(params.seed)
    rounds: dict[int, list[Round]] = {batch: [] for batch in params.batches}

    def run_lap(order: Sequence[str]) -> list[Timings]:
        """Time one lap at each batch size. The machine pace is ignored: it is the same for both sides."""
        # In FEWEST_LAPS together each side gets `benchmark.seconds` at each batch size.
        seconds = params.seconds * len(sides) / len(order) / FEWEST_LAPS
        with ExitStack() as opened:
            binds = {f"{side} {number}": opened.enter_context(sides[side]()) for number, side in enumerate(order)}
            points = [{name: bind(samples.cycled(batch)) for name, bind in binds.items()} for batch in params.batches]
            return race(points, seconds, lambda: 0.0, rng, label)

    for lap in range(MOST_LAPS):
        for batch, timings in zip(rounds, run_lap(OPENING_ORDERS[lap % 2]), strict=True):
            rounds[batch] += timings.rounds
        if lap + 1 >= FEWEST_LAPS and lap % 2:
            changes = [_speed_change(batch, known, params.confidence, rng) for batch, known in rounds.items()]
            if combine(changes).error <= SMALL_ERROR:
                break
    noise = LAP_NOISE / math.sqrt(lap + 1)  # each batch size has its own, and all have as much in common
    return {
        f"{SIDE_BY_SIDE}, batch {each.batch}": each._replace(error=math.hypot(each.error, noise), shared=noise)
        for each in changes
    }


def _speed_change(batch: int, rounds: Sequence[Round], confidence: float, rng: np.random.Generator) -> SpeedChange:
    before, after = (np.array([_seconds(each, side) for each in rounds]) for side in (BEFORE, AFTER))
    ratios = before / after
    return SpeedChange(
        batch=batch,
        log=math.log(np.median(ratios)),
        error=standard_error(*median_interval(ratios, confidence, rng), confidence),
        before=1000 * float(np.median(before)),
        after=1000 * float(np.median(after)),
    )


def _seconds(one: Round, side: str) -> float:
    """Return the seconds of a call of one side: the mean of its two copies."""
    return float(np.mean([median_seconds(calls) for name, calls in one.turns.items() if name.startswith(side)]))


# Race the engines of two runs in laps, if both still exist: what happens to the machine meanwhile happens to both. On
# a shared machine PyTorch may take half as long again for minutes while an engine does not, so ratios say less.

Find = Callable[[str], Path]  # the folder of a precision's engine


def race_runs(before: Find, after: Find, precisions: Collection[str], params: Params) -> dict[str, SpeedChanges]:
    """Race the engines of these precisions on this machine, with the samples of the project in this folder."""
    samples = SampleSet.open(VALIDATION_SAMPLES)
    # Standard output is for the result, and not for progress.
    with redirect_stdout(sys.stderr), whole_machine(SIDE_BY_SIDE):
        return {name: race_two(before(name), after(name), samples, params) for name in precisions}


def race_two(before: Path, after: Path, samples: SampleSet, params: Params) -> SpeedChanges:
    """Race the engines in two folders on this machine as it is now, whatever artifacts/machine.json says."""
    here = describe_machine(EngineRecord.read(after / RECORD).target.runtime)
    old, new = read_engine(before), read_engine(after)
    for record, folder in ((old, before), (new, after)):
        require_fits(record.target, here, folder)
    if (old.files, old.weights) == (new.files, new.weights):
        return {f"{SIDE_BY_SIDE}, same file": SpeedChange(batch=None, log=0.0, error=0.0)}
    if old.interface != new.interface:
        raise EnginewrightError(f"{new.precision}: the two engines take or give other tensors, so a race says nothing")

    sides = {
        side: partial(open_contender, folder, here, params.inference)
        for side, folder in ((BEFORE, before), (AFTER, after))
    }
    return race_sides(sides, samples.tuned(new.profile), params.benchmark, f"{SIDE_BY_SIDE}, {new.precision}")
