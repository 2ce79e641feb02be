"""Judge whether a night is good: measure, compare with the good run, and measure once more what has changed."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from enginewright.measure.comparison import (
    Change,
    SpeedChanges,
    common_precisions,
    compare_runs,
    not_comparable,
    same_versions,
)
from enginewright.measure.history import History
from enginewright.measure.records import Measurements, Outcome


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


Measure = Callable[[Collection[str], str], Found]  # measures these precisions, or all if it is given none; why again
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
        # A night can be good by its races only: if the machine was disturbed, its ratios are useless.
        disturbed = any(change.again for change in compare_runs(now, now, 0.99))
        fills_a_gap = (Outcome.NOT_COMPARABLE in outcomes or bool(new)) and not disturbed
        return self.status == Status.GOOD and (Outcome.IMPROVEMENT in outcomes or fills_a_gap)


def judge(measure: Measure, race: Race, history: History, confidence: float, attempts: int) -> Judgement:
    """Measure again, at most `attempts` times, what is not comparable; and once more what has changed."""
    history.nights()  # first, because a broken file must not cost a night
    good = history.good()
    known = {entry.precision for entry in good.precisions} if good else set()
    raced: dict[str, SpeedChanges] = {}

    def measure_once(precisions: Collection[str], why: str) -> tuple[Found, list[Change]]:
        found = measure(precisions, why)
        now = found.measurements
        for name in precisions or tuple(raced):
            raced.pop(name, None)
        # A precision that the good run lacks has a change if it must be timed again.
        changes = [one for one in compare_runs(now, now, confidence) if one.again and one.precision not in known]
        if good:
            changes += compare_runs(good, now, confidence) if common_precisions(good, now) else []
            # Ratios show large losses; a race shows smaller ones, and whether the engine has caused a loss at all.
            # In a race both engines have the new driver or runtime, so only ratios show what a new version does.
            alike = same_versions(good, now)
            to_race = {change.precision for change in changes if alike or _is_unknown_speed(change)}
            raced.update(race(to_race & known - raced.keys()))
            changes = _with_races(changes, compare_runs(good, now, confidence, raced), raced) if raced else changes
        return found, changes

    def measure_until_comparable(precisions: Collection[str], why: str) -> tuple[Found, list[Change]]:
        """Measure precisions, or all if none is named, and again those for which it may help."""
        found, changes = measure_once(precisions, why)
        for attempt in range(1, attempts + 1):
            unclear = {one.precision: f"{one.precision}: {one.why}" for one in reversed(changes) if one.again}
            if not unclear:
                break
            said = "; ".join(sorted(unclear.values())).replace(": measure again", "")
            found, changes = measure_once(unclear, f" again, {attempt} of at most {attempts} times: {said}")
        return found, changes

    found, changes = measure_until_comparable((), "")
    if changed := {change.precision for change in changes if change.is_better_or_worse}:
        found, second = measure_until_comparable(changed, " once more: a change counts only if it is seen twice")
        changes = _confirmed(changes, second)
    return Judgement(found, changes, first=good is None)


def _with_races(by_ratios: Sequence[Change], by_races: Sequence[Change], raced: Collection[str]) -> list[Change]:
    """Let races decide the speed where there were any. A loss by ratios that no race shows is not comparable."""
    found = [change for change in by_ratios if change.precision not in raced]
    found += [change for change in by_races if change.precision in raced]
    lost = {change.precision for change in by_races if _is_slower(change)}
    # If the good run's ratios are useless, that change stays, so that this night can replace the good run.
    others = [change for change in by_ratios if change.precision in raced]
    found += [change for change in others if _is_unknown_speed(change) and not change.again]
    slower = {change.precision: change for change in reversed(others) if _is_slower(change)}
    for name in slower.keys() - lost:
        loss = f"{slower[name].change:+.1%} beside PyTorch"
        why = f"{loss}, but not slower than the good run's engine side by side: measure again"
        found.append(not_comparable(name, slower[name].figure, why, again=True))
    return found


def _is_unknown_speed(change: Change) -> bool:
    return change.outcome is Outcome.NOT_COMPARABLE and change.is_speed


def _is_slower(change: Change) -> bool:
    return change.outcome is Outcome.REGRESSION and change.is_speed


def _confirmed(first: Sequence[Change], second: Sequence[Change]) -> list[Change]:
    """Return the changes of the second measurement. One counts only if the first has it too, by ratios or a race."""
    outcomes: defaultdict[tuple[str, str], set[Outcome]] = defaultdict(set)
    for change in first:
        outcomes[change.precision, change.subject].add(change.outcome)
    unclear = {change.precision for change in first if change.again}
    comparable = {change.precision for change in first} - unclear
    found = []
    for change in second:
        before = outcomes[change.precision, change.subject]
        if change.outcome in before or not change.is_better_or_worse:
            found.append(change)
        elif before <= {Outcome.NOT_COMPARABLE} and change.precision not in comparable:
            why = "seen once, and not comparable the other time: measure again"
            found.append(change.model_copy(update={"outcome": Outcome.NOT_COMPARABLE, "why": why, "again": True}))
        else:
            why = "seen in one of two measurements"
            found.append(change.model_copy(update={"outcome": Outcome.NO_CHANGE, "why": why}))
    return found
