"""Count how often `enginewright compare --race` raises a false alarm, and how often it misses a slowdown of 5 %.

A night compares its engines with the good run's by such races; alarm_ratios.py does the same for ratios to PyTorch.
Each run is a separate process: it races the int8 engine against itself, then against the same engine with extra work,
with the seconds and batch sizes of params.yaml. Run `python benchmarks/measuring/alarm.py 100` after `dvc repro`. It
exits 1 if more than 1 in 100 races of the engine against itself find a change, or fewer than 95 in 100 slowdowns are
found. `--keep FOLDER` keeps the runs in a folder, and uses those that are there already.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, pstdev

from alarm_ratios import (
    COMPARABLE,
    CONFIDENCE,
    FEWEST_FOUND,
    MOST_FALSE,
    PRECISION,
    one_after_the_other,
    open_int8_engine,
    runs_of,
    work,
)

from enginewright.core.params.all import Params
from enginewright.data.feeds import Feeds
from enginewright.data.sample_set import SampleSet
from enginewright.engine.engine import Engine
from enginewright.engine.machine import Machine
from enginewright.measure.comparison import (
    SpeedChange,
    SpeedChanges,
    combine,
    conclusion,
    deviations_allowed,
    judge_race,
)
from enginewright.measure.race import AFTER, BEFORE, race_sides
from enginewright.measure.records import Outcome
from enginewright.measure.timing import Bind, Contender, ContentionWatch

OUTCOMES = (*COMPARABLE, Outcome.NOT_COMPARABLE)
SAME, SLOWED = "the same engine", "slowed by 5 %"


def run(extra: Mapping[int, int], report: Path) -> None:
    asked = Params.read()
    samples, params = SampleSet.open(Path("artifacts/samples/validation")).fed_to(asked.build), asked.benchmark
    here = Machine.read(Path("artifacts/machine.json"))

    @contextmanager
    def opened(extra: Mapping[int, int]) -> Iterator[Bind]:
        with open_int8_engine(here) as engine:
            yield partial(slowed, engine, extra) if extra else engine.bind

    with ContentionWatch() as watch:
        found = {
            name: race_sides({BEFORE: lambda: opened({}), AFTER: partial(opened, more)}, samples, params, name)
            for name, more in {SAME: {}, SLOWED: extra}.items()
        }
    report.write_text(json.dumps({"contention": watch.contention.model_dump(), "speed_changes": found}))


def slowed(engine: Engine, extra: Mapping[int, int], feeds: Feeds) -> Contender:
    call, times = engine.bind(feeds), extra[len(next(iter(feeds.values())))]
    return partial(one_after_the_other, call, partial(work, times))


def read(report: Path) -> dict[str, SpeedChanges]:
    """Read the speed changes of a run; each is a list in the file."""
    kept = json.loads(report.read_text())["speed_changes"]
    return {name: {figure: SpeedChange(*each) for figure, each in found.items()} for name, found in kept.items()}


def verdict(found: SpeedChanges) -> Outcome:
    return conclusion(judge_race(PRECISION, found, deviations_allowed(CONFIDENCE, len(found) + 2)))


def print_speed_changes(runs: list[dict[str, SpeedChanges]]) -> None:
    print("| figure | the same engine: mean | standard deviation | slowed: median | standard deviation |")
    print("|---|---|---|---|---|")
    everything = [
        {name: {**found, "all together": combine(list(found.values()))} for name, found in one.items()} for one in runs
    ]
    for figure in everything[0][SAME]:
        same, slower = ([one[name][figure].log for one in everything] for name in (SAME, SLOWED))
        print(
            f"| {figure} | {sum(same) / len(same):+.2%} | {pstdev(same):.2%} "
            f"| {median(slower):+.1%} | {pstdev(slower):.2%} |"
        )


def print_verdicts(runs: list[dict[str, SpeedChanges]]) -> bool:
    print(f"\n| the later engine is | races | {' | '.join(OUTCOMES)} |")
    print(f"|---|---|{'---|' * len(OUTCOMES)}")
    found = {name: Counter(verdict(one[name]) for one in runs) for name in (SAME, SLOWED)}
    for name, verdicts in found.items():
        print(f"| {name} | {len(runs)} | {' | '.join(str(verdicts[outcome]) for outcome in OUTCOMES)} |")
    same, slower = found.values()
    false = (same[Outcome.REGRESSION] + same[Outcome.IMPROVEMENT]) / len(runs)
    seen = slower[Outcome.REGRESSION] / len(runs)
    print(f"\nof all races: {false:.1%} false alarms, {seen:.1%} slowdowns found")
    return false <= MOST_FALSE and seen >= FEWEST_FOUND


def main() -> None:
    runs = runs_of(__file__, __doc__, run, read)
    print_speed_changes(runs)
    if not print_verdicts(runs):
        sys.exit("there are more false alarms or missed slowdowns than docs/explanation/measuring.md says")


if __name__ == "__main__":
    main()
