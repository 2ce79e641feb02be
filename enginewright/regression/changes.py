"""The changes between two runs: their records, the verdict on all of them, and how they are printed."""

import math
from collections.abc import Sequence
from enum import StrEnum

from enginewright.core.record import Record

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
