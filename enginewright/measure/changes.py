"""The changes between two runs: their records, the verdict on all of them, and how they are printed."""

import math
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import MEASUREMENTS, Record
from enginewright.core.text import counted
from enginewright.engine.machine import Machine
from enginewright.measure.accuracy_records import Validation
from enginewright.measure.speed_records import SAME_PACE, Benchmark, Ratio
from enginewright.measure.timing import machine_problems

TOGETHER = "speed, all together"
SIDE_BY_SIDE = "side by side"  # how the figures of an engine race begin, which are milliseconds
HEADER = f"{'':29} {'before':>9}    {'after':9} {'better':>7} {'chance':>6}  verdict"


class Outcome(StrEnum):
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NO_CHANGE = "no change"
    CHANGED = "changed"  # as another graph asked for it: neither better nor worse
    NOT_COMPARABLE = "not comparable"


class Change(Record):
    """The change of one figure of one precision between two runs."""

    precision: str
    figure: str
    outcome: Outcome
    before: float | None = None
    after: float | None = None
    change: float | None = None  # a share, above 0 if the later run is better
    slack: float | None = None  # the share up to which a change may be chance
    why: str | None = None
    again: bool = False  # not comparable, and measuring the later run once more may help

    @property
    def subject(self) -> str:
        """Return what was measured, whether by ratios or by a race: `batch 1`, `all together`, `accuracy`."""
        return self.figure.rpartition(", ")[2]

    @property
    def is_better_or_worse(self) -> bool:
        return self.outcome in (Outcome.REGRESSION, Outcome.IMPROVEMENT)

    @property
    def is_speed(self) -> bool:
        return self.figure.startswith(("speed", "times ", SIDE_BY_SIDE))


def not_comparable(precision: str, figure: str, why: str, again: bool = False) -> Change:
    return Change(precision=precision, figure=figure, outcome=Outcome.NOT_COMPARABLE, why=why, again=again)


def judge_difference(
    precision: str, figure: str, change: float, slack: float, before: float | None = None, after: float | None = None
) -> Change:
    """Call a difference of more than `slack` an improvement or a regression."""
    outcome = Outcome.NO_CHANGE
    if abs(change) > slack + 1e-9:
        outcome = Outcome.IMPROVEMENT if change > 0 else Outcome.REGRESSION
    return Change(
        precision=precision, figure=figure, outcome=outcome, before=before, after=after, change=change, slack=slack
    )


def judge_factor(
    precision: str, figure: str, log: float, slack: float, before: float | None = None, after: float | None = None
) -> Change:
    """Judge a factor by its logarithm, where half and double are equally far, and report it as a share."""
    shares = {"change": math.expm1(log), "slack": abs(math.expm1(math.copysign(slack, log)))}
    return judge_difference(precision, figure, log, slack, before, after).model_copy(update=shares)


def conclusion(changes: Sequence[Change]) -> Outcome:
    """Return the worst outcome: first a regression, then what could not be compared, then an improvement."""
    outcomes = {change.outcome for change in changes}
    order = (Outcome.REGRESSION, Outcome.NOT_COMPARABLE, Outcome.IMPROVEMENT)
    return next((outcome for outcome in order if outcome in outcomes), Outcome.NO_CHANGE)


def describe(changes: Sequence[Change], confidence: float) -> str:
    """Write a row for each figure that could be compared, then the others with their reasons, then the conclusion."""
    compared = [change for change in changes if change.change is not None]
    others = [change for change in changes if change.change is None]
    reasons = [f"{change.precision:5} {change.figure:23} {change.why}" for change in others]
    tables = [[HEADER, *map(_row, compared)], ["not comparable:", *reasons]]
    parts = ["\n".join(lines) for lines in tables if len(lines) > 1]
    counted = f", but {len(others)} of {len(changes)} figures are not comparable" if others and compared else ""
    verdict = conclusion(changes)
    said = "no regression" if verdict is Outcome.NOT_COMPARABLE and compared else str(verdict)
    return "\n\n".join([*parts, f"{said}{counted}, at a confidence of {confidence:.0%}"])


def _row(change: Change) -> str:
    values = f"{'':22}" if change.before is None else f"{change.before:>9.4g} -> {change.after:<9.4g}"
    name = f"{change.precision:5} {change.figure:23}"
    return f"{name} {values} {change.change:>+7.1%} {change.slack:>6.1%}  {change.outcome}".rstrip()


# The measurements of one run of the pipeline, and where to read them: measurements.json.


class Measured(Record):
    """The measurements of one precision, which a later run is compared with."""

    precision: str
    engine_bytes: int
    files: dict[str, str]  # the hashes of the engine's files
    executed_as_asked: float
    asked_by: str = ""  # the hash of the graph; empty in a record of an earlier version
    validation: Validation
    benchmark: Benchmark


class Measurements(Record):
    machine: Machine
    precisions: tuple[Measured, ...]


def read_measurements(place: str) -> Measurements:
    """Read the measurements in a reports folder, in a measurements.json, or in a git revision."""
    path = Path(place)
    if path.is_dir():
        if not (path / MEASUREMENTS.name).exists():
            raise EnginewrightError(f"{path} holds no {MEASUREMENTS.name}: give the reports folder of a finished run")
        return Measurements.read(path / MEASUREMENTS.name)
    if path.exists():
        try:
            return Measurements.parse(path.read_bytes(), str(path))
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}; reports are compared by their {MEASUREMENTS.name}") from None
    shown = subprocess.run(["git", "show", "--end-of-options", f"{place}:./{MEASUREMENTS}"], capture_output=True)
    if shown.returncode:
        reason = (shown.stderr.decode(errors="replace").strip().splitlines() or ["git gives no reason"])[0]
        raise EnginewrightError(f"{place} is no file, no folder, and no git revision with {MEASUREMENTS} ({reason})")
    return Measurements.parse(shown.stdout, f"{place}:{MEASUREMENTS}")


# Decide whether the speeds of two runs were measured under the same conditions, so that they can be compared.

VERSIONS = ("runtime_version", "driver", "cuda", "operating_system")  # may differ: a comparison shows what they do


class Identity(Record):
    """What must be the same of the machines of two runs."""

    runtime: str
    device_name: str
    cores: int

    @classmethod
    def of(cls, machine: Machine) -> Self:
        return cls(**machine.model_dump(include=set(cls.model_fields)))


def other_machine(before: Machine, after: Machine) -> str | None:
    """Return how the machines of two runs differ, or None if they are the same."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in Identity.model_fields)
    return next((f"another {name.replace('_', ' ')}: {was} and {now}" for name, was, now in pairs if was != now), None)


def same_versions(before: Machine, after: Machine) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in VERSIONS)


def other_settings(before: Benchmark, after: Benchmark) -> str | None:
    """Return how the settings of two benchmarks differ, or None if their ratios can be compared."""
    if before.threads != after.threads:
        return f"{counted(before.threads, 'thread')} and {after.threads}"
    if before.pytorch != after.pytorch:
        return f"another PyTorch: {before.pytorch} and {after.pytorch}"
    return None if ratio_pairs(before, after) else "no baseline and batch size in common"


def ratio_pairs(before: Benchmark, after: Benchmark) -> list[tuple[Ratio, Ratio]]:
    """Pair the ratios of two benchmarks that have the same baseline and batch size."""
    later = {(ratio.baseline, ratio.batch): ratio for ratio in after.ratios}
    return [(old, later[key]) for old in before.ratios if (key := (old.baseline, old.batch)) in later]


def best_pace(*runs: Measurements) -> float:
    """Return the best machine pace at which any precision was timed: how fast the machine can be."""
    paces = [entry.benchmark.pace.microseconds for run in runs for entry in run.precisions]
    return min((pace for pace in paces if pace is not None), default=0.0)


def slower_machine(timed: Benchmark, best: float) -> str | None:
    """Return why the machine was slower than it can be, or None."""
    # Two runs on a slow machine cannot be compared with each other either: ratios scatter several times as much there.
    if problems := machine_problems(timed):
        return f"{problems[0]} while one was timed: measure again"
    if timed.pace.microseconds is None:
        return "the machine never kept to one pace while one was timed: measure again"
    if timed.pace.microseconds > SAME_PACE * best:
        return f"the machine was {timed.pace.microseconds / best:.2f} times as slow while one was timed: measure again"
    return None


def runs_the_same(old: Measured, new: Measured) -> bool:
    """Tell whether two runs used the same engine file in the same way."""
    return bool(old.files) and old.files == new.files and old.benchmark.cuda_graph == new.benchmark.cuda_graph


# The verdict of the report: verdict.json.


class Verdict(Record):
    """The precision to ship, and for each precision the reasons why it fails, if it does. `unsure` has those that fail
    only because there are too few samples to be sure of them, where params.yaml says that one must be. Where the race
    cannot tell which precision is the fastest, none is recommended, one is offered, and `doubt` says why."""

    recommended: str | None
    offered: str | None = None
    doubt: str = ""
    failures: dict[str, tuple[str, ...]]
    unsure: dict[str, tuple[str, ...]]
