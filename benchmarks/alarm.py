"""How often `enginery compare --race` cries wolf, and how often it misses a slowdown of 5 %.

So a night holds its engines against the good run's; what ratios to PyTorch tell alone, alarm_ratios.py shows.
Each run is a process of its own: it races the int8 engine against itself, then against the same engine with extra work,
with the seconds and batch sizes of params.yaml. `python benchmarks/alarm.py 100` after `dvc repro`; it exits 1 if more
than 1 in 100 races of the engine against itself tell a change, or fewer than 95 in 100 slowdowns are found. `--keep
FOLDER` keeps the runs there, and goes on with those that it finds.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median, pstdev

from alarm_ratios import CALLED, CONFIDENCE, FEWEST_FOUND, MOST_FALSE, PRECISION, open_engine, runs_of, work

from enginery.core.params.all import Params
from enginery.data.feeds import Feeds
from enginery.data.sample_set import SampleSet
from enginery.engine.engine import Engine
from enginery.engine.machine import Machine
from enginery.regression.comparison import Outcome, conclusion, deviations_of, judge_race
from enginery.regression.engine_race import AFTER, BEFORE, Bind, race_sides
from enginery.regression.speed_change import SpeedChange, SpeedChanges, together
from enginery.speed.contention import Company
from enginery.speed.timing import Contender

OUTCOMES = (*CALLED, Outcome.NOT_COMPARABLE)
SAME, SLOWED = "the same engine", "slowed by 5 %"


def run(extra: Mapping[int, int], report: Path) -> None:
    samples, params, company = SampleSet.open(Path("artifacts/samples/validation")), Params.read().benchmark, Company()
    here = Machine.read(Path("artifacts/machine.json"))

    @contextmanager
    def opened(extra: Mapping[int, int]) -> Iterator[Bind]:
        with open_engine(here) as engine:
            yield partial(slowed, engine, extra) if extra else engine.bind

    with company:
        found = {
            name: race_sides({BEFORE: lambda: opened({}), AFTER: partial(opened, more)}, samples, params, name)
            for name, more in {SAME: {}, SLOWED: extra}.items()
        }
    report.write_text(json.dumps({"contention": company.taken.model_dump(), "shifts": found}))


def slowed(engine: Engine, extra: Mapping[int, int], feeds: Feeds) -> Contender:
    call, times = engine.bind(feeds), extra[len(next(iter(feeds.values())))]
    return lambda: (call(), work(times))


def read(report: Path) -> dict[str, SpeedChanges]:
    """A shift is kept as the list of what it holds."""
    kept = json.loads(report.read_text())["shifts"]
    return {name: {figure: SpeedChange(*each) for figure, each in shifts.items()} for name, shifts in kept.items()}


def verdict(shifts: SpeedChanges) -> Outcome:
    return conclusion(judge_race(PRECISION, shifts, deviations_of(CONFIDENCE, len(shifts) + 2)))


def print_shifts(runs: list[dict[str, SpeedChanges]]) -> None:
    print("| figure | the same engine: mean | standard deviation | slowed: median | standard deviation |")
    print("|---|---|---|---|---|")
    everything = [
        {name: {**shifts, "all together": together(list(shifts.values()))} for name, shifts in one.items()}
        for one in runs
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
    print_shifts(runs)
    if not print_verdicts(runs):
        sys.exit("not what docs/measurements.md promises")


if __name__ == "__main__":
    main()
