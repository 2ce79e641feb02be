"""Race candidates in one process and in turns."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from enginewright.core.params.benchmark import EAGER, BenchmarkParams
from enginewright.engine.engine import open_engine
from enginewright.mixing.here import Here
from enginewright.mixing.records import Times
from enginewright.regression.laps import AFTER, BEFORE, Bind, Open, race_sides
from enginewright.speed.timing import Timings, median_interval, race

CONFIDENCE, SEED = 0.95, 0


class Raced:
    """The timings of one race."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings

    def times_over(self, rival: int, number: int) -> Times:
        """Return how many times as fast one engine is as another."""
        ratios = self._timings.ratios(str(rival), str(number))
        low, high = median_interval(ratios, CONFIDENCE, np.random.default_rng(SEED))
        return Times(middle=float(np.median(ratios)), low=low, high=high)


class Races:
    def __init__(self, engines: Sequence[Path], here: Here) -> None:
        self._engines, self._here = engines, here

    def race_all(self, numbers: Collection[int], seconds: float) -> "Raced":
        """Race these engines at once."""
        with ExitStack() as opened:
            feeds = self._here.samples.cycled(self._here.batch)
            point = {str(number): opened.enter_context(self._opened(number)())(feeds) for number in numbers}
            (timings,) = race([point], seconds, lambda: 0.0, np.random.default_rng(SEED), "mix, all")
        return Raced(timings)

    def laps_of(self, rival: int, number: int, seconds: float) -> Times:
        """Race two engines anew in laps: a choice of the fastest flatters what is chosen."""
        batches = (self._here.batch,)
        params = BenchmarkParams(
            batches=batches, seconds=seconds, baselines=(EAGER,), requests=(1,), confidence=CONFIDENCE, seed=SEED
        )
        sides = {BEFORE: self._opened(rival), AFTER: self._opened(number)}
        (change,) = race_sides(sides, self._here.samples, params, "mix, the best").values()
        middle, low, high = change.times(CONFIDENCE)
        return Times(middle=middle, low=low, high=high)

    def _opened(self, number: int) -> Open:
        @contextmanager
        def opened() -> Iterator[Bind]:
            with open_engine(self._engines[number], self._here.machine, self._here.inference) as engine:
                yield engine.bind

        return opened
