"""Race two sides in laps, which open them anew: a copy of an engine is faster or slower for as long as it is open."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

import numpy as np

from enginewright.core.params.benchmark import BenchmarkParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.regression.changes import SIDE_BY_SIDE
from enginewright.regression.speed_change import SpeedChange, SpeedChanges, combine, standard_error
from enginewright.speed.timing import Contender, Round, Timings, median_interval, median_seconds, race

BEFORE, AFTER = "before", "after"
# One engine that is opened twice in a process is up to 3 % faster in one copy than in the other for as long as both are
# open, and mostly the first copy is the slower one. So each lap opens each side twice, and laps take these orders in
# turns: no side is opened earlier than the other on average.
OPENING_ORDERS = ((BEFORE, AFTER, AFTER, BEFORE), (AFTER, BEFORE, BEFORE, AFTER))
LAP_NOISE = 0.01  # the standard deviation that this leaves in one lap: see benchmarks/alarm.py
FEWEST_LAPS, MOST_LAPS = 4, 16
SMALL_ERROR = 0.004  # with this standard error over all batch sizes a change of 5 % is seen, and the race ends

Bind = Callable[[Feeds], Contender]
Open = Callable[[], AbstractContextManager[Bind]]


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
