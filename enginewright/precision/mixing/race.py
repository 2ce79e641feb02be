"""Make candidates, int8 and float precisions and mixes of them; race them in one process and in turns; choose."""

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.params.build import EAGER, BenchmarkParams
from enginewright.core.params.precisions import Keep
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import run_as_written
from enginewright.graph.choose_boxes import BoxesInGraph, choose_in_graph
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.measure.race import AFTER, BEFORE, open_contender, race_sides
from enginewright.measure.timing import Bind, Timings, race
from enginewright.precision.dialect import Dialect
from enginewright.precision.in_dialect import Ingredients, quantize_beside, rewritten
from enginewright.precision.mixing.traces import Bench, LayersTimes, Parts
from enginewright.precision.records import (
    AIM,
    SEARCH,
    Assignment,
    Candidate,
    Rescued,
    Speedup,
    digest_of,
    open_calibrated,
    open_rescued,
    spared_layers,
)
from enginewright.precision.search.checks import Checks

CONFIDENCE, SEED = 0.95, 0
INT8 = 0  # its number among the candidates
RESAMPLES = 1000
NANOSECOND = 1e-6  # in milliseconds: OpenVINO counts in microseconds, of which a tiny network may take none


def is_searched(converted: Path) -> bool:
    """Tell whether a search, and so a rescue, has shaped the int8 graph in this folder."""
    return (converted / SEARCH).exists()


def open_int8(converted: Path, simplified: Path, calibrated: Path, rescued: Path, samples: SampleSet) -> Rescued:
    """Return what the int8 graph in the folder `converted` is made of, so that its parts in a mix are its own."""
    if not is_searched(converted):
        return open_calibrated(simplified, calibrated, samples)
    given = open_rescued(simplified, calibrated, rescued, samples)
    spared = spared_layers(converted / SEARCH, given.ranges, digest_of(rescued))
    return given._replace(spared=(*given.spared, *spared))


def for_compiler(given: Rescued, samples: SampleSet, wanted: Dialect, keep: Keep, folder: Path) -> Ingredients:
    """Write the graph as the compiler takes it into the folder, and return it with all that int8 needs."""
    plain, path = load_graph(given.graph), folder / "model.onnx"
    save_graph(rewritten(plain, wanted, "int8") or plain, path)
    return Ingredients(path, given.ranges, samples.cycled(1), wanted, keep, given.spared, given.rounded)


class Made(NamedTuple):
    assignment: Assignment
    engine: Path
    used: float  # the largest part of what a threshold allows


@dataclass(frozen=True)
class CandidateMaker:
    """Writes the graphs of candidates as the stage convert does, builds their engines, and checks what they lose."""

    int8: Ingredients
    parts: Parts
    boxes: BoxesInGraph
    checks: Checks
    build: Callable[[Path, Path], object]  # of a graph an engine, in this folder

    def make(self, assignment: Assignment, folder: Path) -> Made:
        """Write and build a mix."""
        model, _ = quantize_beside(self.parts.floating(assignment), self.int8)
        return self.build_graph(model, assignment, folder)

    def build_graph(self, model: onnx.ModelProto, assignment: Assignment, folder: Path) -> Made:
        folder.mkdir()
        graph, engine = folder / "model.onnx", folder / "engine"
        save_graph(choose_in_graph(model, self.boxes), graph)
        self.build(graph, engine)
        return self.check(assignment, graph, engine)

    def check(self, assignment: Assignment, graph: Path, engine: Path) -> Made:
        """Say what is lost by a graph that is built already."""
        return Made(assignment, engine, self.checks.check_run(run_as_written(graph), 0, 0.0).used)


@dataclass(frozen=True)
class Races:
    engines: Sequence[Path]
    bench: Bench

    def race_all(self, numbers: Collection[int], seconds: float) -> Timings:
        """Race these engines at once."""
        with ExitStack() as opened:
            feeds = self.bench.samples.cycled(self.bench.batch)
            point = {str(number): opened.enter_context(self._opened(number))(feeds) for number in numbers}
            (timings,) = race([point], seconds, lambda: 0.0, np.random.default_rng(SEED), "mix, all")
        return timings

    def laps_of(self, rival: int, number: int, seconds: float) -> Speedup:
        """Race two engines anew in laps: a choice of the fastest flatters what is chosen."""
        params = BenchmarkParams(
            batches=(self.bench.batch,),
            seconds=seconds,
            baselines=(EAGER,),
            requests=(1,),
            confidence=CONFIDENCE,
            seed=SEED,
        )
        sides = {BEFORE: partial(self._opened, rival), AFTER: partial(self._opened, number)}
        (change,) = race_sides(sides, self.bench.samples, params, "mix, the best").values()
        middle, low, high = change.times(CONFIDENCE)
        return Speedup(middle=middle, low=low, high=high)

    def _opened(self, number: int) -> AbstractContextManager[Bind]:
        return open_contender(self.engines[number], self.bench.machine, self.bench.inference)


def raced_speedup(timings: Timings, rival: int, number: int) -> Speedup:
    """Return how many times as fast one engine was as another in a race of all."""
    middle, low, high = timings.factor(str(number), str(rival), CONFIDENCE, np.random.default_rng(SEED))
    return Speedup(middle=middle, low=low, high=high)


class MixChoice(NamedTuple):
    candidates: tuple[Candidate, ...]
    mixed: int | None  # the best mix, if there is any
    rival: PrecisionName  # the fastest of those in one type
    promised: Speedup | None  # the mix over it
    delivered: Speedup | None

    @property
    def taken(self) -> Assignment | None:
        """Return the mix if it is made: if it won, or nothing was raced."""
        if self.mixed is None or (self.delivered is not None and self.delivered.low <= 1):
            return None
        return self.candidates[self.mixed].assignment

    @property
    def made_as(self) -> PrecisionName:
        """Return how the answer is made: a mix as int8 with nodes in other types."""
        return "int8" if self.taken else self.rival


def choose(
    precision: str,
    types: Sequence[PrecisionName],
    made: Sequence[Made],
    layers: Sequence[LayersTimes],
    races: Races | None,
    seconds: float,
) -> MixChoice:
    """Race all that keep the thresholds, then the fastest mix against the fastest that is in one type.

    Those in one type are first in `made`, in the order of `types`. `layers` has the times of the layers of each
    candidate. They decide without races.
    """
    pure = range(len(types))
    rivals = [number for number in pure if made[number].used <= AIM]
    mixes = [number for number in range(len(types), len(made)) if made[number].used <= AIM]
    if not rivals:
        closest = min(made[number].used for number in pure)
        raise EnginewrightError(
            f"mix.{precision}: neither {' nor '.join(types)} keeps precisions.{precision}.thresholds on calibration "
            f"samples; the closest takes {closest:.0%} of what they allow, and {AIM:.0%} may be taken"
        )
    promised = [promise(layers[INT8], each) for each in layers]
    timings = races.race_all([*pure, *mixes], seconds) if races else None
    speeds = {
        number: raced_speedup(timings, INT8, number).middle if timings else promised[number].middle
        for number in (*pure, *mixes)
    }
    rival, mixed = max(rivals, key=speeds.__getitem__), max(mixes, key=speeds.__getitem__, default=None)
    delivered = None
    if races and timings and mixed is not None:
        # Race the mix anew, unless it has lost already: the choice of the fastest mix flatters it.
        first = raced_speedup(timings, rival, mixed)
        delivered = first if first.high < 1 else races.laps_of(rival, mixed, seconds)
    return MixChoice(
        candidates=tuple(
            Candidate(
                assignment=each.assignment,
                used=each.used,
                promised=promised[number],
                raced=speeds.get(number) if races else None,
            )
            for number, each in enumerate(made)
        ),
        mixed=mixed,
        rival=types[rival],
        promised=None if mixed is None else promise(layers[rival], layers[mixed]),
        delivered=delivered,
    )


def promise(rival: LayersTimes, mix: LayersTimes) -> Speedup:
    """Return how many times as fast a mix is as its rival, if each layer takes its median over the turns.

    A turn is over in milliseconds, and something else may have the machine then: the sum of a turn would tell of that.
    """
    turns = np.random.default_rng(SEED).integers(0, len(mix), (RESAMPLES, len(mix)))
    whole, *drawn = (_total(rival[each]) / _total(mix[each]) for each in (slice(None), *turns))
    low, high = np.quantile(drawn, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Speedup(middle=whole, low=float(low), high=float(high))


def _total(layers: LayersTimes) -> float:
    return max(float(np.median(layers, axis=0).sum()), NANOSECOND)
