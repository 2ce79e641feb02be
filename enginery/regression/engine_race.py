"""The engines of two runs in one race: whatever the machine does meanwhile, it does to both.

A ratio to PyTorch needs no engine of the earlier run. But on a machine that is shared PyTorch may take half as long
again for minutes, and the engine not, so that ratios of different days say little. Where both engines are at hand, they
are held against each other.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from pathlib import Path

import numpy as np

from enginery.core.errors import EngineryError
from enginery.core.params.all import Params
from enginery.core.params.benchmark import BenchmarkParams
from enginery.core.paths import VALIDATION_SAMPLES
from enginery.data.feeds import Feeds
from enginery.data.sample_set import SampleSet
from enginery.engine.engine import open_engine
from enginery.engine.folder import RECORD, read_engine
from enginery.engine.record import EngineRecord
from enginery.engine.target import require_fits
from enginery.engine.this_machine import describe_machine
from enginery.regression.comparison import SIDE_BY_SIDE
from enginery.regression.speed_change import SpeedChange, SpeedChanges, error_within, together
from enginery.speed.timing import Contender, Round, median_interval, middle, race

BEFORE, AFTER = "before", "after"
# One and the same engine, opened again in one process, is up to 3 % faster or slower for as long as it is open, and the
# earlier it was opened the slower it mostly is. So each lap opens each side twice, and no side has the better places.
LINE_UPS = ((BEFORE, AFTER, AFTER, BEFORE), (AFTER, BEFORE, BEFORE, AFTER))
PLACEMENT = 0.01  # what that makes of one lap: a standard deviation, see benchmarks/alarm.py
FEWEST_LAPS, MOST_LAPS = 4, 16
CLEAR = 0.004  # the standard error, over all batch sizes, with which a change of 5 % is seen and no lap need be added

Bind = Callable[[Feeds], Contender]
Open = Callable[[], AbstractContextManager[Bind]]
Find = Callable[[str], Path]  # the folder of a precision's engine


def race_runs(before: Find, after: Find, precisions: Collection[str], params: Params) -> dict[str, SpeedChanges]:
    """By precision, on this machine, with the images of the project that one is in."""
    samples = SampleSet.open(VALIDATION_SAMPLES)
    with redirect_stdout(sys.stderr):  # its progress is not what was asked for
        return {name: race_engines(before(name), after(name), samples, params) for name in precisions}


def race_engines(before: Path, after: Path, samples: SampleSet, params: Params) -> SpeedChanges:
    """Two engines' folders, raced on this machine as it is now, and not as artifacts/machine.json has it."""
    here = describe_machine(EngineRecord.read(after / RECORD).target.runtime)
    old, new = read_engine(before), read_engine(after)
    for record, folder in ((old, before), (new, after)):
        require_fits(record.target, here, folder)
    if old.files == new.files:
        return {f"{SIDE_BY_SIDE}, same file": SpeedChange(batch=None, log=0.0, error=0.0)}
    if old.interface != new.interface:
        raise EngineryError(f"{new.precision}: the two engines take or give other tensors, so a race says nothing")

    @contextmanager
    def opened(folder: Path) -> Iterator[Bind]:
        with open_engine(folder, here, params.inference) as engine:
            yield engine.bind

    sides = {BEFORE: lambda: opened(before), AFTER: lambda: opened(after)}
    return race_sides(sides, samples, params.benchmark, f"{SIDE_BY_SIDE}, {new.precision}")


def race_sides(sides: Mapping[str, Open], samples: SampleSet, params: BenchmarkParams, label: str) -> SpeedChanges:
    """Laps are added by twos until chance is small, or there were enough. Of the fewest, a side has its seconds."""
    rng = np.random.default_rng(params.seed)
    rounds: dict[int, list[Round]] = {batch: [] for batch in params.batches}
    for lap in range(MOST_LAPS):
        for batch, new in zip(rounds, _run_lap(LINE_UPS[lap % 2], sides, samples, params, rng, label), strict=True):
            rounds[batch] += new
        if lap + 1 >= FEWEST_LAPS and lap % 2:
            shifts = [_shift(batch, known, params.confidence, rng) for batch, known in rounds.items()]
            if together(shifts).error <= CLEAR:
                break
    placement = PLACEMENT / math.sqrt(lap + 1)  # of each batch size by itself, and of all alike
    return {
        f"{SIDE_BY_SIDE}, batch {each.batch}": each._replace(error=math.hypot(each.error, placement), shared=placement)
        for each in shifts
    }


def _run_lap(
    line_up: Sequence[str],
    sides: Mapping[str, Open],
    samples: SampleSet,
    params: BenchmarkParams,
    rng: np.random.Generator,
    label: str,
) -> list[Sequence[Round]]:
    """By batch size. Both sides see the same pace, so no round is set aside for it."""
    seconds = params.seconds * len(sides) / len(line_up) / FEWEST_LAPS
    with ExitStack() as opened:
        binds = {f"{side} {place}": opened.enter_context(sides[side]()) for place, side in enumerate(line_up)}
        points = [{place: bind(samples.cycled(batch)) for place, bind in binds.items()} for batch in params.batches]
        return [timings.rounds for timings in race(points, seconds, lambda: 0.0, rng, label)]


def _shift(batch: int, rounds: Sequence[Round], confidence: float, rng: np.random.Generator) -> SpeedChange:
    before, after = (np.array([_seconds(each, side) for each in rounds]) for side in (BEFORE, AFTER))
    ratios = before / after
    return SpeedChange(
        batch=batch,
        log=math.log(np.median(ratios)),
        error=error_within(*median_interval(ratios, confidence, rng), confidence),
        before=1000 * float(np.median(before)),
        after=1000 * float(np.median(after)),
    )


def _seconds(one: Round, side: str) -> float:
    """Of a call, the mean of the side's two places."""
    return float(np.mean([middle(calls) for place, calls in one.turns.items() if place.startswith(side)]))
