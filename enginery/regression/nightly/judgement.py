"""Whether a night is good: measured, held against the good run, and what has changed measured once more.

Ratios to PyTorch tell large losses. A race against the good run's engine, where it can be held, tells smaller ones, and
whether a loss is the engine's at all.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from enginery.regression.comparison import CHANGED, Change, Outcome, compare_runs, versions_of
from enginery.regression.measurements import Measurements
from enginery.regression.speed_change import SpeedChanges


class Status(IntEnum):
    """What a night ends with, also as the exit status; those of `enginery compare` where it has them."""

    GOOD = 0
    REGRESSION = 3
    NOT_COMPARABLE = 4
    GATE = 5


class Found(NamedTuple):
    """What was measured, and by precision what the gate has against it."""

    measurements: Measurements
    broken: Mapping[str, tuple[str, ...]]


Measure = Callable[[Collection[str]], Found]  # measures these precisions anew, or all if it is given none
Race = Callable[
    [Collection[str]], Mapping[str, SpeedChanges]
]  # these precisions' engines against the good run's, if it can


class Judgement(NamedTuple):
    """`changes` are against the good run; there are none of a precision that it lacks, unless the machine was slow."""

    found: Found
    changes: Sequence[Change]
    first: bool  # there was no good run before it

    @property
    def status(self) -> Status:
        if any(self.found.broken.values()):
            return Status.GATE
        if any(change.outcome == Outcome.REGRESSION for change in self.changes):
            return Status.REGRESSION
        return Status.NOT_COMPARABLE if any(change.again for change in self.changes) else Status.GOOD

    @property
    def becomes_good_run(self) -> bool:
        """Only if it is better, or has what cannot be held against the present one.

        Not every good night: with each held against the one before, a loss of 2% a night would never be seen. Where
        there is none yet, a disturbed night stands in: it tells a large loss, and the next good night takes its place.
        """
        if self.first:
            return self.status in (Status.GOOD, Status.NOT_COMPARABLE)
        outcomes = [change.outcome for change in self.changes]
        new = {entry.precision for entry in self.found.measurements.precisions} - precisions_of(self.changes)
        fills_in = (Outcome.NOT_COMPARABLE in outcomes or bool(new)) and self._is_calm
        return self.status == Status.GOOD and (Outcome.IMPROVEMENT in outcomes or fills_in)

    @property
    def _is_calm(self) -> bool:
        """Of a night that races decided, ratios may be as useless as those of the good run."""
        now = self.found.measurements
        return not any(change.again for change in compare_runs(now, now, 0.99))


def judge(measure: Measure, race: Race, good: Measurements | None, confidence: float, attempts: int) -> Judgement:
    """Measures again, at most `attempts` times, what neither ratios nor a race told; and once what has changed.

    A loss that ratios tell is believed if a race tells it too, or cannot be held.
    """

    raced: dict[str, SpeedChanges] = {}

    def look(precisions: Collection[str]) -> tuple[Found, list[Change]]:
        found = measure(precisions)
        for name in precisions or tuple(raced):
            raced.pop(name, None)
        changes = held_against(good, found.measurements, confidence)
        if good:
            # What a new driver or runtime did is for ratios to tell: in a race both sides would have it.
            same = versions_of(good.machine) == versions_of(found.measurements.machine)
            wanted = {change.precision for change in changes if same or _is_unknown_speed(change)}
            raced.update(race(wanted & {entry.precision for entry in good.precisions} - raced.keys()))
            changes = with_races(changes, good, found.measurements, confidence, raced)
        return found, changes

    def settled(precisions: Collection[str]) -> tuple[Found, list[Change]]:
        found, changes = look(precisions)
        for _ in range(attempts):
            if not (open_ones := {change.precision for change in changes if change.again}):
                break
            found, changes = look(open_ones)
        return found, changes

    found, changes = settled(())
    if changed := {change.precision for change in changes if change.outcome in CHANGED}:
        first = changes
        found, changes = settled(changed)
        changes = seen_twice(first, changes)
    return Judgement(found, changes, first=good is None)


def held_against(good: Measurements | None, now: Measurements, confidence: float) -> list[Change]:
    """What the good run lacks has only to be timed at the machine's best pace: then it can be a good run."""
    known = {entry.precision for entry in good.precisions} if good else set()
    alone = [change for change in compare_runs(now, now, confidence) if change.again and change.precision not in known]
    shared = known & {entry.precision for entry in now.precisions}
    return alone + (compare_runs(good, now, confidence) if good and shared else [])


def with_races(
    changes: Sequence[Change],
    good: Measurements,
    now: Measurements,
    confidence: float,
    raced: Mapping[str, SpeedChanges],
) -> list[Change]:
    """Races decide what ratios left open, and whether a loss is the engine's.

    That the good run's ratios are of no use stays said: it can be replaced.
    """
    if not raced:
        return list(changes)
    decided = [change for change in compare_runs(good, now, confidence, raced) if change.precision in raced]
    lost = {change.precision for change in decided if _is_slower(change)}
    by_ratios = [change for change in changes if change.precision in raced]
    useless = [change for change in by_ratios if _is_unknown_speed(change) and not change.again]
    slower = {change.precision: change for change in reversed(by_ratios) if _is_slower(change)}
    others = [change for change in changes if change.precision not in raced]
    return others + decided + useless + [_unconfirmed(slower[name]) for name in slower.keys() - lost]


def seen_twice(first: Sequence[Change], second: Sequence[Change]) -> list[Change]:
    """The second, in which only what the first says too counts as a change, be it by ratios or by a race."""
    called: defaultdict[tuple[str, str], set[Outcome]] = defaultdict(set)
    for change in first:
        called[change.precision, change.of].add(change.outcome)
    measured_twice = precisions_of(first) - {change.precision for change in first if change.again}
    return [
        _confirmed(change, called[change.precision, change.of], change.precision in measured_twice) for change in second
    ]


def precisions_of(changes: Iterable[Change]) -> set[str]:
    return {change.precision for change in changes}


def _is_unknown_speed(change: Change) -> bool:
    return change.outcome is Outcome.NOT_COMPARABLE and change.is_speed


def _is_slower(change: Change) -> bool:
    return change.outcome is Outcome.REGRESSION and change.is_speed


def _unconfirmed(change: Change) -> Change:
    why = f"{change.change:+.1%} beside PyTorch, but not slower than the good run's engine side by side: measure again"
    return Change(precision=change.precision, figure=change.figure, outcome=Outcome.NOT_COMPARABLE, why=why, again=True)


def _confirmed(change: Change, before: set[Outcome], twice: bool) -> Change:
    if change.outcome in before or change.outcome not in CHANGED:
        return change
    if before <= {Outcome.NOT_COMPARABLE} and not twice:
        why = "seen once, and not comparable the other time: measure again"
        return change.model_copy(update={"outcome": Outcome.NOT_COMPARABLE, "why": why, "again": True})
    return change.model_copy(update={"outcome": Outcome.NO_CHANGE, "why": "seen in one of two measurements"})
