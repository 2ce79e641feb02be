"""A run's measurements, the changes between two runs, the conclusion from all of them, and how they are printed."""

import math
import subprocess
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import MEASUREMENTS, Record
from enginewright.engine.machine import Machine
from enginewright.measure.records import Benchmark, Validation

TOGETHER = "speed, all together"
SIDE_BY_SIDE = "side by side"  # how the figures of an engine race begin, which are milliseconds


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
    rows = [f"{'':29} {'before':>9}    {'after':9} {'better':>7} {'chance':>6}  verdict"]
    reasons = ["not comparable:"]
    for change in changes:
        name = f"{change.precision:5} {change.figure:23}"
        if change.change is None:
            reasons.append(f"{name} {change.why}")
        else:
            values = f"{'':22}" if change.before is None else f"{change.before:>9.4g} -> {change.after:<9.4g}"
            judged = f"{change.change:>+7.1%} {change.slack:>6.1%}  {change.outcome}"
            rows.append(f"{name} {values} {judged}".rstrip())
    parts = ["\n".join(lines) for lines in (rows, reasons) if len(lines) > 1]
    verdict = conclusion(changes)
    said = "no regression" if verdict is Outcome.NOT_COMPARABLE and len(rows) > 1 else str(verdict)
    some = f", but {len(reasons) - 1} of {len(changes)} figures are not comparable" if len(parts) == 2 else ""
    return "\n\n".join([*parts, f"{said}{some}, at a confidence of {confidence:.0%}"])


class Identity(Record):
    """The facts of a machine that two runs must share."""

    runtime: str
    device_name: str
    cores: int

    @classmethod
    def of(cls, machine: Machine) -> Self:
        return cls(**machine.model_dump(include=set(cls.model_fields)))


class Measurement(Record):
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
    precisions: tuple[Measurement, ...]


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
    shown = show_in_git(place, MEASUREMENTS)
    if shown.returncode:
        reason = (shown.stderr.decode(errors="replace").strip().splitlines() or ["git gives no reason"])[0]
        raise EnginewrightError(f"{place} is no file, no folder, and no git revision with {MEASUREMENTS} ({reason})")
    return Measurements.parse(shown.stdout, f"{place}:{MEASUREMENTS}")


def show_in_git(revision: str, path: Path) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["git", "show", "--end-of-options", f"{revision}:./{path}"], capture_output=True)


class Verdict(Record):
    """The precision to ship, and for each precision the reasons why it fails, if it does. `unsure` has those that fail
    only because there are too few samples to be sure of them, where params.yaml says that one must be. Where the race
    cannot tell which precision is the fastest, none is recommended, one is offered, and `doubt` says why."""

    recommended: str | None
    offered: str | None = None
    doubt: str = ""
    failures: dict[str, tuple[str, ...]]
    unsure: dict[str, tuple[str, ...]]
