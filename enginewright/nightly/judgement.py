"""Judge whether a night is good: measure, compare with the good run, and measure once more what has changed."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from enginewright.measure.changes import Change, Measurements, Outcome, not_comparable
from enginewright.measure.comparison import SpeedChanges, compare_runs, same_versions


class Status(IntEnum):
    """The exit status of a night. 3, 4 and 6 mean the same as those of `enginewright compare`."""

    GOOD = 0
    REGRESSION = 3
    NOT_COMPARABLE = 4
    GATE = 5
    UNSURE = 6


class Found(NamedTuple):
    """The measurements of a night, and for each precision the sentences of the gate about what is broken."""

    measurements: Measurements
    broken: Mapping[str, tuple[str, ...]]


Measure = Callable[[Collection[str]], Found]  # measures these precisions again, or all if it is given none
Race = Callable[[Collection[str]], Mapping[str, SpeedChanges]]  # races these engines against the good run's, if it can


class Judgement(NamedTuple):
    found: Found
    changes: Sequence[Change]  # against the good run; a new precision has one if the machine was too slow to time it
    first: bool  # there was no good run to compare with

    @property
    def status(self) -> Status:
        if any(self.found.broken.values()):
            return Status.GATE
        if any(change.outcome == Outcome.REGRESSION for change in self.changes):
            return Status.REGRESSION
        if self.unsure:
            return Status.UNSURE
        return Status.NOT_COMPARABLE if any(change.again for change in self.changes) else Status.GOOD

    @property
    def unsure(self) -> dict[str, tuple[str, ...]]:
        """Return by precision what the samples are too few to be sure of, where one must be."""
        entries = self.found.measurements.precisions
        return {entry.precision: why for entry in entries if (why := entry.validation.not_enough_samples)}

    @property
    def becomes_good_run(self) -> bool:
        """Tell whether this night replaces the good run: if it is better, or has what could not be compared."""
        # A night without a change does not: if each night were compared with the one before, a loss of 2 % a night
        # would never be seen. Without a good run even a night on a disturbed machine serves, as it shows large losses.
        if self.first:
            return self.status in (Status.GOOD, Status.NOT_COMPARABLE)
        outcomes, now = [change.outcome for change in self.changes], self.found.measurements
        new = {entry.precision for entry in now.precisions} - {change.precision for change in self.changes}
        fills_a_gap = (Outcome.NOT_COMPARABLE in outcomes or bool(new)) and not any(
            change.again for change in compare_runs(now, now, 0.99)
        )  # a night can be good by its races only: if the machine was disturbed, its ratios are useless
        return self.status == Status.GOOD and (Outcome.IMPROVEMENT in outcomes or fills_a_gap)


def judge(measure: Measure, race: Race, good: Measurements | None, confidence: float, attempts: int) -> Judgement:
    """Measure again, at most `attempts` times, what is not comparable; and once more what has changed."""
    night = _Night(measure, race, good, confidence, attempts)
    found, changes = night.measure_until_comparable(())
    if changed := {change.precision for change in changes if change.is_better_or_worse}:
        found, second = night.measure_until_comparable(changed)
        changes = confirm(changes, second)
    return Judgement(found, changes, first=good is None)


@dataclass
class _Night:
    """The measurements and races of one night."""

    measure: Measure
    race: Race
    good: Measurements | None
    confidence: float
    attempts: int
    raced: dict[str, SpeedChanges] = field(default_factory=dict)

    def measure_until_comparable(self, precisions: Collection[str]) -> tuple[Found, list[Change]]:
        """Measure precisions, or all if none is named, and again those for which it may help."""
        found, changes = self._measure_once(precisions)
        for _ in range(self.attempts):
            if not (unclear := {change.precision for change in changes if change.again}):
                break
            found, changes = self._measure_once(unclear)
        return found, changes

    def _measure_once(self, precisions: Collection[str]) -> tuple[Found, list[Change]]:
        found = self.measure(precisions)
        for name in precisions or tuple(self.raced):
            self.raced.pop(name, None)
        changes = compare_with_good_run(self.good, found.measurements, self.confidence)
        if self.good:
            # Ratios show large losses; a race shows smaller ones, and whether the engine has caused a loss at all.
            # In a race both engines have the new driver or runtime, so only ratios show what a new version does.
            alike = same_versions(self.good, found.measurements)
            wanted = {change.precision for change in changes if alike or _is_unknown_speed(change)}
            in_good_run = {entry.precision for entry in self.good.precisions}
            self.raced.update(self.race(wanted & in_good_run - self.raced.keys()))
            changes = apply_races(changes, self.good, found.measurements, self.confidence, self.raced)
        return found, changes


def compare_with_good_run(good: Measurements | None, now: Measurements, confidence: float) -> list[Change]:
    """Compare a night with the good run. A precision that the good run lacks has a change if it must be timed again."""
    known = {entry.precision for entry in good.precisions} if good else set()
    itself = compare_runs(now, now, confidence)
    new = [change for change in itself if change.again and change.precision not in known]
    shared = known & {entry.precision for entry in now.precisions}
    return new + (compare_runs(good, now, confidence) if good and shared else [])


def apply_races(
    changes: Sequence[Change],
    good: Measurements,
    now: Measurements,
    confidence: float,
    raced: Mapping[str, SpeedChanges],
) -> list[Change]:
    """Let races decide the speed where there were any. A loss by ratios that no race shows is not comparable."""
    if not raced:
        return list(changes)
    decided = [change for change in compare_runs(good, now, confidence, raced) if change.precision in raced]
    lost = {change.precision for change in decided if _is_slower(change)}
    by_ratios = [change for change in changes if change.precision in raced]
    # If the good run's ratios are useless, that change stays, so that this night can replace the good run.
    useless = [change for change in by_ratios if _is_unknown_speed(change) and not change.again]
    slower = {change.precision: change for change in reversed(by_ratios) if _is_slower(change)}
    others = [change for change in changes if change.precision not in raced]
    return others + decided + useless + [_without_race(slower[name]) for name in slower.keys() - lost]


def confirm(first: Sequence[Change], second: Sequence[Change]) -> list[Change]:
    """Return the changes of the second measurement. One counts only if the first has it too, by ratios or a race."""
    outcomes: defaultdict[tuple[str, str], set[Outcome]] = defaultdict(set)
    for change in first:
        outcomes[change.precision, change.subject].add(change.outcome)
    comparable = {change.precision for change in first} - {change.precision for change in first if change.again}
    return [_confirmed(one, outcomes[one.precision, one.subject], one.precision in comparable) for one in second]


def _is_unknown_speed(change: Change) -> bool:
    return change.outcome is Outcome.NOT_COMPARABLE and change.is_speed


def _is_slower(change: Change) -> bool:
    return change.outcome is Outcome.REGRESSION and change.is_speed


def _without_race(change: Change) -> Change:
    why = f"{change.change:+.1%} beside PyTorch, but not slower than the good run's engine side by side: measure again"
    return not_comparable(change.precision, change.figure, why, again=True)


def _confirmed(change: Change, before: set[Outcome], was_comparable: bool) -> Change:
    """Return the change as it is if the first measurement had the same outcome `before`; else withdraw it."""
    if change.outcome in before or not change.is_better_or_worse:
        return change
    if before <= {Outcome.NOT_COMPARABLE} and not was_comparable:
        why = "seen once, and not comparable the other time: measure again"
        return change.model_copy(update={"outcome": Outcome.NOT_COMPARABLE, "why": why, "again": True})
    return change.model_copy(update={"outcome": Outcome.NO_CHANGE, "why": "seen in one of two measurements"})
