"""Compare two runs of the pipeline: tell whether the later one is slower beside PyTorch, or less accurate."""

import math
from collections.abc import Mapping

from enginewright.core.errors import EnginewrightError
from enginewright.measure import changes as conditions
from enginewright.measure.accuracy_records import Validation
from enginewright.measure.changes import (
    TOGETHER,
    Change,
    Measured,
    Measurements,
    Outcome,
    judge_difference,
    judge_factor,
    not_comparable,
)
from enginewright.measure.intervals import Z
from enginewright.measure.speed_change import (
    SpeedChange,
    SpeedChanges,
    combine,
    deviations_allowed,
    speed_change_between,
)
from enginewright.measure.timing import LARGEST_MACHINE_EFFECT, broken_limits

MOST_CHANCE_IN_A_RACE = 0.05  # a race that leaves a larger change to chance has no result
MORE_ERROR = 0.1  # a relative error that grows by less, as a logarithm, is unchanged
NO_ERROR = 1e-7  # below the resolution of float32


def compare_runs(
    before: Measurements, after: Measurements, confidence: float, raced: Mapping[str, SpeedChanges] | None = None
) -> list[Change]:
    """Compare every figure of the precisions that both runs have.

    `confidence` holds for all figures together: how sure it is that nothing is called a change if nothing changed.
    `raced` has the results of engine races by precision, which replace the ratios to PyTorch.
    """
    raced = raced or {}
    pairs = common_precisions(before, after)
    if not pairs:
        raise EnginewrightError("the two runs have no precision in common")
    speeds = [raced.get(new.precision) or conditions.ratio_pairs(old.benchmark, new.benchmark) for old, new in pairs]
    deviations = deviations_allowed(confidence, figures=sum(len(each) + 2 for each in speeds))
    elsewhere = conditions.other_machine(before.machine, after.machine)
    best = conditions.best_pace(before, after)
    versions_alike = conditions.same_versions(before.machine, after.machine)
    changes: list[Change] = []
    for old, new in pairs:
        if new.precision in raced:
            speed = judge_race(new.precision, raced[new.precision], deviations)
        else:
            speed = _compare_speed(old, new, deviations, elsewhere, best)
        same_engine = versions_alike and conditions.runs_the_same(old, new)
        changes += map(_without_engine_change, speed) if same_engine else speed
        changes += _compare_results(old, new, deviations)
    return changes


def common_precisions(before: Measurements, after: Measurements) -> list[tuple[Measured, Measured]]:
    return [(old, new) for old in before.precisions for new in after.precisions if old.precision == new.precision]


def judge_race(precision: str, speed_changes: SpeedChanges, deviations: float) -> list[Change]:
    """Judge an engine race. If it leaves too much to chance, only the batch sizes with a clear change are judged."""
    everything, *batches = _judge_speed_changes(precision, speed_changes, deviations)
    slack = everything.slack or 0.0
    if everything.outcome is Outcome.NO_CHANGE and slack > MOST_CHANCE_IN_A_RACE:
        why = f"even side by side, {slack:.0%} may be chance: measure again while the machine is less busy"
        clear = [change for change in batches if change.outcome is not Outcome.NO_CHANGE]
        return [not_comparable(precision, TOGETHER, why, again=True), *clear]
    return [everything, *batches]


def _compare_speed(old: Measured, new: Measured, deviations: float, elsewhere: str | None, best: float) -> list[Change]:
    """Compare ratios to PyTorch, if both were measured under the same conditions."""
    if problem := elsewhere or conditions.other_settings(old.benchmark, new.benchmark):
        return [not_comparable(new.precision, "speed", problem)]
    for timed in (new, old):
        if problem := conditions.slower_machine(timed.benchmark, best):
            return [_compare_on_slow_machine(problem, old, new, again=timed is new)]
    return _compare_ratios(old, new, deviations)


def _compare_ratios(old: Measured, new: Measured, deviations: float) -> list[Change]:
    """Compare ratios at each batch size, and all together, where a smaller change can be told from chance."""
    # A ratio that is noisy in either run is not comparable: its interval is narrower than the truth.
    speed_changes: dict[str, SpeedChange] = {}
    noisy = []
    for before, after in conditions.ratio_pairs(old.benchmark, new.benchmark):
        figure = f"times {after.baseline}, batch {after.batch}"
        if broken_limits(after, new.benchmark):
            why = "timings scattered in the later run: measure again"
            noisy.append(not_comparable(new.precision, figure, why, again=True))
        elif broken_limits(before, old.benchmark):
            why = "timings scattered in the earlier run: compare with another"
            noisy.append(not_comparable(new.precision, figure, why))
        else:
            speed_changes[figure] = speed_change_between(before, old.benchmark, after, new.benchmark)
    return [*_judge_speed_changes(new.precision, speed_changes, deviations), *noisy]


def _compare_on_slow_machine(problem: str, old: Measured, new: Measured, again: bool) -> Change:
    """Report a loss that is too large for a slow machine to cause; anything smaller is not comparable."""
    pairs = conditions.ratio_pairs(old.benchmark, new.benchmark)
    change = combine([speed_change_between(a, old.benchmark, b, new.benchmark) for a, b in pairs])
    limit = math.log(LARGEST_MACHINE_EFFECT)
    if change.log < -limit and not change.is_mostly_the_baseline:
        return judge_factor(new.precision, TOGETHER, change.log, limit)
    return not_comparable(new.precision, "speed", problem, again)


def _judge_speed_changes(precision: str, speed_changes: SpeedChanges, deviations: float) -> list[Change]:
    """Judge the comparable speed changes all together, and then each of them."""
    judged = {figure: _judge_speed(precision, figure, each, deviations) for figure, each in speed_changes.items()}
    comparable = [speed_changes[name] for name, one in judged.items() if one.outcome is not Outcome.NOT_COMPARABLE]
    everything = [_judge_speed(precision, TOGETHER, combine(comparable), deviations)] if comparable else []
    return [*everything, *judged.values()]


def _judge_speed(precision: str, figure: str, speed: SpeedChange, deviations: float) -> Change:
    change = judge_factor(precision, figure, speed.log, deviations * speed.deviation, speed.before, speed.after)
    if change.outcome is Outcome.NO_CHANGE or not speed.is_mostly_the_baseline:
        return change
    times = math.exp(speed.baseline_log)
    why = f"the baseline itself took {times:.2f} times as long, most of the change: measure again"
    return not_comparable(precision, figure, why, again=True)


def _without_engine_change(change: Change) -> Change:
    """Blame the machine for a change if the engine is the same file: it cannot be slower than itself."""
    if not change.is_better_or_worse:
        return change
    why = f"{change.change:+.1%}, but the engine is the same file to the byte, so it is the machine: measure again"
    return not_comparable(change.precision, change.figure, why, again=True)


def _compare_results(old: Measured, new: Measured, deviations: float) -> list[Change]:
    was, now, precision = old.validation, new.validation, new.precision
    if was.samples != now.samples:
        why = f"one was validated with {was.samples} {was.kind}, the other with {now.samples}"
        return [not_comparable(precision, now.metric, why)]
    if was.samples_sha256 and now.samples_sha256 not in ("", was.samples_sha256):
        return [not_comparable(precision, now.metric, f"they were validated with other {now.kind}")]
    errors = (was.engine_against_pytorch.relative, now.engine_against_pytorch.relative)
    closer = math.log((errors[0] + NO_ERROR) / (errors[1] + NO_ERROR))
    return [
        *_compare_metric(was, now, deviations),
        judge_factor(precision, "relative error", closer, MORE_ERROR, *errors),
        _judge_executed(old, new),
    ]


def _judge_executed(old: Measured, new: Measured) -> Change:
    """Judge the share of layers that ran as asked. Another graph may ask for less: a search may have spared layers."""
    shares = (old.executed_as_asked, new.executed_as_asked)
    change = judge_difference(new.precision, "executed as asked", shares[1] - shares[0], 0, *shares)
    if old.asked_by in ("", new.asked_by) or not new.asked_by or not change.is_better_or_worse:
        return change
    return change.model_copy(update={"outcome": Outcome.CHANGED})


def _compare_metric(was: Validation, now: Validation, deviations: float) -> list[Change]:
    """Compare how well the task is done; without labels or the like this is not known."""
    precision, before, after = now.precision, was.main, now.main
    if was.metric != now.metric:
        return [not_comparable(precision, now.metric, f"the earlier run was judged by {was.metric}")]
    if before is None or after is None:
        if before is after:
            return []
        why = f"the {'earlier' if before is None else 'later'} run had {now.lacking} to measure it with"
        return [not_comparable(precision, now.metric, why)]
    # Both engines are held against PyTorch on the same samples, so what may be chance is known of either drop.
    slack = deviations * math.hypot(*((one.interval.high - one.interval.low) / (2 * Z) for one in (before, after)))
    better = after.engine - before.engine if after.higher_is_better else before.engine - after.engine
    return [judge_difference(precision, now.metric, better, slack, before.engine, after.engine)]
