"""Race engines and baselines in laps, which open each of them anew.

One engine that is opened twice in a process is up to 3 % faster in one copy than in the other for as long as both are
open, and mostly the first copy is the slower one. So each lap opens them in another order.
"""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stdout
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import VALIDATION_SAMPLES
from enginewright.core.params.all import Params
from enginewright.core.params.build import BenchmarkParams, InferenceParams
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import Machine, require_fits
from enginewright.engine.record import RECORD, EngineRecord, read_engine
from enginewright.engine.runtimes import describe_machine
from enginewright.measure.comparison import SIDE_BY_SIDE, SpeedChange, SpeedChanges, combine, standard_error
from enginewright.measure.records import EnginesRace, Factor, RacedPair
from enginewright.measure.timing import Bind, Call, Round, Timings, median_interval, median_seconds, race, whole_machine

Open = Callable[[], AbstractContextManager[Bind]]


@contextmanager
def open_contender(folder: Path, machine: Machine, inference: InferenceParams) -> Iterator[Bind]:
    with open_engine(folder, machine, inference) as engine:
        yield engine.bind


def run_lap(
    openers: Mapping[str, Open], feeds: Sequence[Feeds], seconds: float, rng: np.random.Generator, label: str
) -> list[Timings]:
    """Open contenders in this order and race them, with each of the feeds in turns, whatever the machine's pace is."""
    with ExitStack() as opened:
        binds = {name: opened.enter_context(open_one()) for name, open_one in openers.items()}
        points = [{name: bind(each) for name, bind in binds.items()} for each in feeds]
        return race(points, seconds, lambda: 0.0, rng, label)


# Race all engines and the first baseline. This race alone decides which engine is the fastest: ratios to a baseline
# that were taken at different times do not tell.

LAPS = 4
COPY_NOISE = 0.014  # the standard deviation that the choice of copies leaves in the ratio of two in one lap


def race_engines(
    openers: Mapping[str, Open], baseline: str, feeds: Feeds, batch: int, params: BenchmarkParams, threads: int
) -> EnginesRace:
    """Race them in laps, in which each is opened earlier than others as often as later."""
    rng, names, rounds = np.random.default_rng(params.seed), list(openers), list[Round]()
    for lap in range(LAPS):
        order = [*names[lap:], *names[:lap]][:: 1 - 2 * (lap % 2)]
        label = f"race, lap {lap + 1} of {LAPS}"
        (timings,) = run_lap({name: openers[name] for name in order}, [feeds], params.seconds / LAPS, rng, label)
        rounds += timings.rounds
    whole = Timings(rounds)
    times = {pair: whole.factor(*pair, params.confidence, rng) for pair in combinations(names, 2)}
    return EnginesRace(
        batch=batch,
        baseline=baseline,
        threads=threads,
        confidence=params.confidence,
        rounds=len(rounds),
        milliseconds={name: 1000 * median_seconds(whole.calls_of(name)) for name in names},
        pairs=tuple(RacedPair(one=a, other=b, **in_other_copies(each)._asdict()) for (a, b), each in times.items()),
    )


def in_other_copies(times: Factor) -> Factor:
    """Widen the interval of a race in laps by what the choice of copies leaves in it."""
    copies, middle = 2 * COPY_NOISE / math.sqrt(LAPS), times.median  # two standard deviations
    low = middle / math.exp(math.hypot(math.log(middle / times.low), copies))
    return Factor(middle, low, middle * math.exp(math.hypot(math.log(times.high / middle), copies)))


# Race two sides until it is known well enough how much faster one is. Each lap opens each side twice.

BEFORE, AFTER = "before", "after"
OPENING_ORDERS = ((BEFORE, AFTER, AFTER, BEFORE), (AFTER, BEFORE, BEFORE, AFTER))  # no side is earlier on average
LAP_NOISE = 0.01  # the standard deviation that copies leave in one lap: see benchmarks/measuring/alarm.py
FEWEST_LAPS, MOST_LAPS = 4, 16
SecondsOf = Callable[[Sequence[Call]], float]  # of what calls in a round are taken as one
SMALL_ERROR = 0.004  # with this standard error over all batch sizes a change of 5 % is seen, and the race ends


def race_sides(
    sides: Mapping[str, Open],
    samples: SampleSet,
    params: BenchmarkParams,
    label: str,
    seconds_of: SecondsOf = median_seconds,
) -> SpeedChanges:
    """Run laps in pairs until the standard error is small, or MOST_LAPS."""
    rng, feeds = np.random.default_rng(params.seed), [samples.cycled(batch) for batch in params.batches]
    rounds: dict[int, list[Round]] = {batch: [] for batch in params.batches}
    # In FEWEST_LAPS together each side gets `benchmark.seconds` at each batch size.
    seconds = params.seconds / 2 / FEWEST_LAPS
    for lap in range(MOST_LAPS):
        openers = {f"{side} {number}": sides[side] for number, side in enumerate(OPENING_ORDERS[lap % 2])}
        for batch, timings in zip(rounds, run_lap(openers, feeds, seconds, rng, label), strict=True):
            rounds[batch] += timings.rounds
        if lap + 1 >= FEWEST_LAPS and lap % 2:
            changes = [_speed_change(*each, params.confidence, rng, seconds_of) for each in rounds.items()]
            if combine(changes).error <= SMALL_ERROR:
                break
    noise = LAP_NOISE / math.sqrt(lap + 1)  # each batch size has its own, and all have as much in common
    return {
        f"{SIDE_BY_SIDE}, batch {each.batch}": each._replace(error=math.hypot(each.error, noise), shared=noise)
        for each in changes
    }


def _speed_change(
    batch: int, rounds: Sequence[Round], confidence: float, rng: np.random.Generator, seconds_of: SecondsOf
) -> SpeedChange:
    def in_rounds(side: str) -> NDArray[np.float64]:
        """Return the seconds of a call in each round: the mean of the side's two copies."""
        copies = [[calls for name, calls in each.turns.items() if name.startswith(side)] for each in rounds]
        return np.array([np.mean([seconds_of(calls) for calls in each]) for each in copies])

    before, after = in_rounds(BEFORE), in_rounds(AFTER)
    ratios = before / after
    return SpeedChange(
        batch=batch,
        log=math.log(np.median(ratios)),
        error=standard_error(*median_interval(ratios, confidence, rng), confidence),
        before=1000 * float(np.median(before)),
        after=1000 * float(np.median(after)),
    )


# Race the engines of two runs, if both still exist: what happens to the machine meanwhile happens to both. On a shared
# machine PyTorch may take half as long again for minutes while an engine does not, so ratios say less.

Find = Callable[[str], Path]  # the folder of a precision's engine


def race_runs(before: Find, after: Find, precisions: Collection[str], params: Params) -> dict[str, SpeedChanges]:
    """Race the engines of these precisions on this machine, with the samples of the project in this folder."""
    samples = SampleSet.open(VALIDATION_SAMPLES)
    # Standard output is for the result, and not for progress.
    with redirect_stdout(sys.stderr), whole_machine(SIDE_BY_SIDE):
        return {name: race_folders(before(name), after(name), samples, params) for name in precisions}


def race_folders(before: Path, after: Path, samples: SampleSet, params: Params) -> SpeedChanges:
    """Race the engines in two folders on this machine as it is now, whatever artifacts/machine.json says."""
    here = describe_machine(EngineRecord.read(after / RECORD).target.runtime)
    old, new = read_engine(before), read_engine(after)
    for record, folder in ((old, before), (new, after)):
        require_fits(record.target, here, folder)
    if (old.files, old.weights) == (new.files, new.weights):
        return {f"{SIDE_BY_SIDE}, same file": SpeedChange(batch=None, log=0.0, error=0.0)}
    if old.interface != new.interface:
        raise EnginewrightError(f"{new.precision}: the two engines take or give other tensors, so a race says nothing")
    folders = {BEFORE: before, AFTER: after}
    sides = {side: partial(open_contender, folder, here, params.inference) for side, folder in folders.items()}
    return race_sides(sides, samples.tuned(new.build), params.benchmark, f"{SIDE_BY_SIDE}, {new.precision}")
