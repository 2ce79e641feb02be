"""Race candidates in one process and in turns."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from enginewright.core.params.measuring import EAGER, BenchmarkParams
from enginewright.core.params.precisions import Keep
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import run_as_written
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.measure.race import AFTER, BEFORE, open_contender, race_sides
from enginewright.measure.timing import Bind, Timings, race
from enginewright.precision.dialect import Dialect
from enginewright.precision.in_dialect import Ingredients, quantize_beside, rewritten
from enginewright.precision.mixing.records import Times, Way
from enginewright.precision.mixing.traces import Here, Parts
from enginewright.precision.rescue.records import Rescued, digest_of, open_calibrated, open_rescued
from enginewright.precision.search.checks import Checks
from enginewright.precision.search.records import SEARCH, spared_layers

CONFIDENCE, SEED = 0.95, 0


class Raced:
    """The timings of one race."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings

    def times_over(self, rival: int, number: int) -> Times:
        """Return how many times as fast one engine is as another."""
        rng = np.random.default_rng(SEED)
        middle, low, high = self._timings.factor(str(number), str(rival), CONFIDENCE, rng)
        return Times(middle=middle, low=low, high=high)


class Races:
    def __init__(self, engines: Sequence[Path], here: Here) -> None:
        self._engines, self._here = engines, here

    def race_all(self, numbers: Collection[int], seconds: float) -> "Raced":
        """Race these engines at once."""
        with ExitStack() as opened:
            feeds = self._here.samples.cycled(self._here.batch)
            point = {str(number): opened.enter_context(self._opened(number))(feeds) for number in numbers}
            (timings,) = race([point], seconds, lambda: 0.0, np.random.default_rng(SEED), "mix, all")
        return Raced(timings)

    def laps_of(self, rival: int, number: int, seconds: float) -> Times:
        """Race two engines anew in laps: a choice of the fastest flatters what is chosen."""
        batches = (self._here.batch,)
        params = BenchmarkParams(
            batches=batches, seconds=seconds, baselines=(EAGER,), requests=(1,), confidence=CONFIDENCE, seed=SEED
        )
        sides = {BEFORE: partial(self._opened, rival), AFTER: partial(self._opened, number)}
        (change,) = race_sides(sides, self._here.samples, params, "mix, the best").values()
        middle, low, high = change.times(CONFIDENCE)
        return Times(middle=middle, low=low, high=high)

    def _opened(self, number: int) -> AbstractContextManager[Bind]:
        return open_contender(self._engines[number], self._here.machine, self._here.inference)


# Make candidates: write their graphs as the stage convert does, build their engines, and check what they lose.

Build = Callable[[Path, Path], object]  # of a graph an engine, in this folder


class Made(NamedTuple):
    way: Way
    engine: Path
    used: float  # the largest part of what a threshold allows


@dataclass(frozen=True)
class Maker:
    int8: Ingredients
    parts: Parts
    boxes: BoxesInGraph
    checks: Checks
    build: Build

    def make(self, way: Way, folder: Path) -> Made:
        """Write and build a mix."""
        model, _ = quantize_beside(self.parts.floating(way), self.int8)
        return self.build_graph(model, way, folder)

    def build_graph(self, model: onnx.ModelProto, way: Way, folder: Path) -> Made:
        folder.mkdir()
        graph, engine = folder / "model.onnx", folder / "engine"
        save_graph(choose_in_graph(model, self.boxes), graph)
        self.build(graph, engine)
        return self.check(way, graph, engine)

    def check(self, way: Way, graph: Path, engine: Path) -> Made:
        """Say what is lost by a graph that is built already."""
        return Made(way, engine, self.checks.check_run(run_as_written(graph), 0, 0.0).used)


# Open what int8 is made of, so that its parts in a mix are its own.


def is_searched(converted: Path) -> bool:
    """Tell whether a search, and so a rescue, has shaped the int8 graph in this folder."""
    return (converted / SEARCH).exists()


def open_int8(
    converted: Path, simplified: Path, calibrated: Path, rescued: Path, samples: SampleSet
) -> tuple[Rescued, tuple[str, ...]]:
    """Return what the int8 graph in the folder `converted` is made of, and the layers that its search spared."""
    if not is_searched(converted):
        return open_calibrated(simplified, calibrated, samples), ()
    given = open_rescued(simplified, calibrated, rescued, samples)
    return given, spared_layers(converted / SEARCH, given.ranges, digest_of(rescued))


def for_compiler(
    given: Rescued, spared: Collection[str], samples: SampleSet, wanted: Dialect, keep: Keep, folder: Path
) -> Ingredients:
    """Write the graph as the compiler takes it into the folder, and return it with all that int8 needs."""
    plain = load_graph(given.graph)
    save_graph(rewritten(plain, wanted, "int8") or plain, folder / "model.onnx")
    spared = *given.spared, *spared
    return Ingredients(folder / "model.onnx", given.ranges, samples.cycled(1), wanted, keep, spared, given.rounded)
