"""Two runs of the pipeline, and whether the later one is worse: slower beside PyTorch, or further from it.

Speed is judged by ratios to PyTorch, or by a race of both runs' engines where one was held: see engine_race.py.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import NormalDist

from enginery.accuracy.records import Validation
from enginery.core.errors import EngineryError
from enginery.core.record import Record
from enginery.engine.machine import Machine
from enginery.regression.measurements import Measured, Measurements
from enginery.regression.speed_change import SpeedChange, SpeedChanges, speed_change_between, together
from enginery.speed.noise_limits import MOST_A_MACHINE_DOES, disturbed, scatters
from enginery.speed.records import SAME_PACE, Benchmark, Ratio

TOGETHER = "speed, all together"
SIDE_BY_SIDE = "side by side"  # how figures of a race begin, which are milliseconds
LEAST_TOLD = 0.05  # a race that leaves a change of more than this to chance has told nothing
MORE_ERROR = 0.1  # what a relative error may grow by and count as unchanged
NO_ERROR = 1e-7  # below the resolution of float32
HEADER = f"{'':29} {'before':>9}    {'after':9} {'better':>7} {'chance':>6}  verdict"  # above 0 is better


class Outcome(StrEnum):
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    NO_CHANGE = "no change"
    NOT_COMPARABLE = "not comparable"


CHANGED = (Outcome.REGRESSION, Outcome.IMPROVEMENT)
VERSIONS = ("runtime_version", "driver", "cuda", "operating_system")
SAME_MACHINE = ("runtime", "device_name", "cores")  # versions may differ, and the system: what they do is to be seen


class Change(Record):
    """One figure of one precision. `change` is a share, above 0 for the better; within `slack` it may be chance.

    `again` says of what is not comparable that measuring the later run once more may help.
    """

    precision: str
    figure: str
    outcome: Outcome
    before: float | None = None
    after: float | None = None
    change: float | None = None
    slack: float | None = None
    why: str | None = None
    again: bool = False

    @property
    def of(self) -> str:
        """What it is a figure of, whatever it was held against: batch 1, all together, accuracy."""
        return self.figure.rpartition(", ")[2]

    @property
    def is_speed(self) -> bool:
        return self.figure.startswith(("speed", "times ", SIDE_BY_SIDE))


def compare_runs(
    before: Measurements, after: Measurements, confidence: float, raced: Mapping[str, SpeedChanges] | None = None
) -> list[Change]:
    """`confidence` is that of all together: how sure it is that, had nothing changed, nothing would be called so.

    By precision, `raced` is what a race of both runs' engines told: ratios to PyTorch are not needed there.
    """
    raced = raced or {}
    both = pairs_of(before, after)
    if not both:
        raise EngineryError("the two runs have no precision in common")
    speeds = [raced.get(new.precision) or _pairs(old.benchmark, new.benchmark) for old, new in both]
    figures = sum(len(each) + 2 for each in speeds)
    deviations = deviations_of(confidence, figures)
    elsewhere, best = other_machine(before.machine, after.machine), best_pace(before, after)
    same_versions = versions_of(before.machine) == versions_of(after.machine)
    changes: list[Change] = []
    for old, new in both:
        if new.precision in raced:
            speed = judge_race(new.precision, raced[new.precision], deviations)
        elif problem := elsewhere or other_settings(old.benchmark, new.benchmark):
            speed = [_not_comparable(new.precision, "speed", problem)]
        elif problem := slower_machine(new.benchmark, best):
            speed = [_despite(problem, old, new, again=True)]
        elif problem := slower_machine(old.benchmark, best):
            speed = [_despite(problem, old, new, again=False)]
        else:
            speed = compare_speed(old, new, deviations)
        changes += map(_not_of_the_engine, speed) if same_versions and runs_the_same(old, new) else speed
        changes += compare_results(old, new, deviations)
    return changes


def pairs_of(before: Measurements, after: Measurements) -> list[tuple[Measured, Measured]]:
    """By precision, of those that both have."""
    return [(old, new) for old in before.precisions for new in after.precisions if old.precision == new.precision]


def deviations_of(confidence: float, figures: int) -> float:
    """How many standard errors chance is given, if one of so many figures alone is to be called a change by chance."""
    return NormalDist().inv_cdf(1 - (1 - confidence) / figures / 2)


def compare_speed(old: Measured, new: Measured, deviations: float) -> list[Change]:
    """At each batch size, and at all of them together, which tells a smaller change from chance.

    What scattered in either run is not held against the other, for its interval says less than it should; nor is what
    the baseline did itself.
    """
    shifts: dict[str, SpeedChange] = {}
    unsteady = []
    for a, b in _pairs(old.benchmark, new.benchmark):
        figure = f"times {b.baseline}, batch {b.batch}"
        if scatters(b, new.benchmark):
            why = "timings scattered in the later run: measure again"
            unsteady.append(_not_comparable(new.precision, figure, why, again=True))
        elif scatters(a, old.benchmark):
            why = "timings scattered in the earlier run: compare with another"
            unsteady.append(_not_comparable(new.precision, figure, why))
        else:
            shifts[figure] = speed_change_between(a, old.benchmark, b, new.benchmark)
    return [*_judged_shifts(new.precision, shifts, deviations), *unsteady]


def judge_race(precision: str, shifts: SpeedChanges, deviations: float) -> list[Change]:
    everything, *others = _judged_shifts(precision, shifts, deviations)
    slack = everything.slack or 0.0
    if everything.outcome is Outcome.NO_CHANGE and slack > LEAST_TOLD:
        why = f"even side by side, {slack:.0%} may be chance: measure again while the machine is less busy"
        clear = [change for change in others if change.outcome is not Outcome.NO_CHANGE]
        return [_not_comparable(precision, TOGETHER, why, again=True), *clear]
    return [everything, *others]


def _despite(problem: str, old: Measured, new: Measured, again: bool) -> Change:
    """A loss that no slow machine explains is one, whatever the machine did."""
    shift = together(
        [speed_change_between(a, old.benchmark, b, new.benchmark) for a, b in _pairs(old.benchmark, new.benchmark)]
    )
    if shift.log < -math.log(MOST_A_MACHINE_DOES) and not shift.is_mostly_the_baselines:
        return _judged_factor(new.precision, TOGETHER, shift.log, math.log(MOST_A_MACHINE_DOES))
    return _not_comparable(new.precision, "speed", problem, again)


def compare_results(old: Measured, new: Measured, deviations: float) -> list[Change]:
    was, now, precision = old.validation, new.validation, new.precision
    if was.samples != now.samples:
        why = f"one was validated with {was.samples} images, the other with {now.samples}"
        return [_not_comparable(precision, "accuracy", why)]
    errors = (was.engine_against_pytorch.relative, now.engine_against_pytorch.relative)
    shares = (old.executed_as_asked, new.executed_as_asked)
    closer = math.log((errors[0] + NO_ERROR) / (errors[1] + NO_ERROR))
    return [
        *_compare_accuracy(was, now, deviations),
        _judged_factor(precision, "relative error", closer, MORE_ERROR, *errors),
        _judged(precision, "executed as asked", shares[1] - shares[0], 0, *shares),
    ]


def _compare_accuracy(was: Validation, now: Validation, deviations: float) -> list[Change]:
    """Without labels there is none to compare."""
    before, after, precision = was.engine_accuracy, now.engine_accuracy, now.precision
    if before is None and after is None:
        return []
    if before is None or after is None:
        why = f"the {'earlier' if before is None else 'later'} run had no labels or no scores to measure it with"
        return [Change(precision=precision, figure="accuracy", outcome=Outcome.NOT_COMPARABLE, why=why)]
    return [_judged(precision, "accuracy", after - before, deviations * _chance(was, now), before, after)]


def other_machine(before: Machine, after: Machine) -> str | None:
    for name in SAME_MACHINE:
        was, now = getattr(before, name), getattr(after, name)
        if was != now:
            return f"another {name.replace('_', ' ')}: {was} and {now}"
    return None


def best_pace(*runs: Measurements) -> float:
    """The best at which any precision was timed: what the machine can be."""
    paces = [entry.benchmark.pace.microseconds for run in runs for entry in run.precisions]
    return min((pace for pace in paces if pace is not None), default=0.0)


def versions_of(machine: Machine) -> dict[str, str]:
    return machine.model_dump(include=set(VERSIONS))


def runs_the_same(old: Measured, new: Measured) -> bool:
    """One and the same engine file, run in the same way."""
    return bool(old.files) and old.files == new.files and old.benchmark.cuda_graph == new.benchmark.cuda_graph


def _not_of_the_engine(change: Change) -> Change:
    """The same file is not faster or slower than itself: whatever changed is no finding about it."""
    if change.outcome not in CHANGED:
        return change
    why = f"{change.change:+.1%}, but the engine is the same file to the byte, so it is the machine: measure again"
    return _not_comparable(change.precision, change.figure, why, again=True)


def other_settings(before: Benchmark, after: Benchmark) -> str | None:
    if before.threads != after.threads:
        return f"{before.threads} threads and {after.threads}"
    if before.pytorch and after.pytorch and before.pytorch != after.pytorch:
        return f"another PyTorch: {before.pytorch} and {after.pytorch}"
    if not _pairs(before, after):
        return "no baseline and batch size in common"
    return None


def slower_machine(one: Benchmark, best: float) -> str | None:
    """A machine that is slower than it can be is not even like itself: there, ratios scatter several times as much."""
    if amiss := disturbed(one):
        return f"{amiss[0]} while one was timed: measure again"
    if one.pace.microseconds is None:
        return "the machine never kept to one pace while one was timed: measure again"
    if one.pace.microseconds > SAME_PACE * best:
        return f"the machine was {one.pace.microseconds / best:.2f} times as slow while one was timed: measure again"
    return None


def _pairs(before: Benchmark, after: Benchmark) -> list[tuple[Ratio, Ratio]]:
    return [
        (old, new)
        for old in before.ratios
        for new in after.ratios
        if (old.baseline, old.batch) == (new.baseline, new.batch)
    ]


def _chance(was: Validation, now: Validation) -> float:
    """How far two accuracies lie apart by chance, if only images change sides on which an engine left PyTorch."""
    agreed = [(each.samples, each.engine_against_pytorch.top1_agreement) for each in (was, now)]
    undecided = sum(samples * (1 - share) for samples, share in agreed if share is not None)
    return math.sqrt(undecided) / now.samples


def _not_comparable(precision: str, figure: str, why: str, again: bool = False) -> Change:
    return Change(precision=precision, figure=figure, outcome=Outcome.NOT_COMPARABLE, why=why, again=again)


def _judged(
    precision: str, figure: str, change: float, slack: float, before: float | None = None, after: float | None = None
) -> Change:
    outcome = Outcome.NO_CHANGE
    if abs(change) > slack + 1e-9:
        outcome = Outcome.IMPROVEMENT if change > 0 else Outcome.REGRESSION
    return Change(
        precision=precision, figure=figure, outcome=outcome, before=before, after=after, change=change, slack=slack
    )


def _judged_factor(
    precision: str, figure: str, log: float, slack: float, before: float | None = None, after: float | None = None
) -> Change:
    """Judged by logarithms, where half and double are equally far, and told as shares."""
    shares = {"change": math.expm1(log), "slack": abs(math.expm1(math.copysign(slack, log)))}
    return _judged(precision, figure, log, slack, before, after).model_copy(update=shares)


def _judged_shifts(precision: str, shifts: SpeedChanges, deviations: float) -> list[Change]:
    """Of all together first, in which what is not comparable has no part."""
    judged = {figure: _judged_shift(precision, figure, shift, deviations) for figure, shift in shifts.items()}
    held = [shifts[figure] for figure, change in judged.items() if change.outcome is not Outcome.NOT_COMPARABLE]
    everything = [_judged_shift(precision, TOGETHER, together(held), deviations)] if held else []
    return [*everything, *judged.values()]


def _judged_shift(precision: str, figure: str, shift: SpeedChange, deviations: float) -> Change:
    change = _judged_factor(precision, figure, shift.log, deviations * shift.chance, shift.before, shift.after)
    if change.outcome is Outcome.NO_CHANGE or not shift.is_mostly_the_baselines:
        return change
    why = f"the baseline itself took {math.exp(shift.longer):.2f} times as long, most of the change: measure again"
    return _not_comparable(precision, figure, why, again=True)


def conclusion(changes: Sequence[Change]) -> Outcome:
    """The worst: a regression outweighs what could not be compared, and that an improvement."""
    outcomes = {change.outcome for change in changes}
    order = (Outcome.REGRESSION, Outcome.NOT_COMPARABLE, Outcome.IMPROVEMENT)
    return next((outcome for outcome in order if outcome in outcomes), Outcome.NO_CHANGE)


def describe(changes: Sequence[Change], confidence: float) -> str:
    """A row for each figure that could be compared, then what could not be, and why."""
    compared = [change for change in changes if change.change is not None]
    others = [change for change in changes if change.change is None]
    parts = [[HEADER, *map(_row, compared)], ["not comparable:", *map(_reason, others)]]
    told = ["\n".join(lines) for lines in parts if len(lines) > 1]
    counted = f", but {len(others)} of {len(changes)} figures are not comparable" if others and compared else ""
    said = "no regression" if conclusion(changes) is Outcome.NOT_COMPARABLE and compared else str(conclusion(changes))
    return "\n\n".join([*told, f"{said}{counted}, at a confidence of {confidence:.0%}"])


def _row(change: Change) -> str:
    values = f"{'':22}" if change.before is None else f"{change.before:>9.4g} -> {change.after:<9.4g}"
    named = f"{change.precision:5} {change.figure:23}"
    return f"{named} {values} {change.change:>+7.1%} {change.slack:>6.1%}  {change.outcome}".rstrip()


def _reason(change: Change) -> str:
    return f"{change.precision:5} {change.figure:23} {change.why}"
