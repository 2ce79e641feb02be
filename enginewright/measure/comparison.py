"""Compare two runs of the pipeline: tell whether the later one is slower beside PyTorch, or less accurate."""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, mean
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.core.text import counted
from enginewright.engine.record import Speedup
from enginewright.measure.intervals import Z
from enginewright.measure.records import (
    SAME_PACE,
    Benchmark,
    Identity,
    Measurement,
    Measurements,
    Outcome,
    Ratio,
    Validation,
)
from enginewright.measure.timing import LARGEST_MACHINE_EFFECT, broken_limits, machine_problems

# The ratio of one engine to PyTorch differs between two runs by more than its intervals say. These are the standard
# deviations of its logarithm in one run: the part of each batch size, and the part that all batch sizes share, because
# an engine is a little faster or slower for as long as it is open. They suffice: benchmarks/measuring/alarm_ratios.py.
BETWEEN_RUNS, AS_OPENED = 0.01, 0.02
MOST_OF_A_CHANGE = 0.5
BASELINE_DRIFT = 0.03  # a baseline whose time moved by less is taken as unchanged: the engine's may have moved too
MOST_CHANCE_IN_A_RACE = 0.05  # a race that leaves a larger change to chance has no result
MORE_ERROR = 0.1  # a relative error that grows by less, as a logarithm, is unchanged
NO_ERROR = 1e-7  # below the resolution of float32
TOGETHER = "speed, all together"
SIDE_BY_SIDE = "side by side"  # how the figures of an engine race begin, which are milliseconds
VERSIONS = ("runtime_version", "driver", "cuda", "operating_system")  # may differ: a comparison shows what they do


class Change(Record):
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


class SpeedChange(NamedTuple):
    """A change of speed between two runs, in logarithms."""

    batch: int | None  # None for several batch sizes together
    log: float  # above 0 if the later engine is faster
    error: float  # the standard error of `log` at this batch size
    shared: float = 0.0  # the standard error that all batch sizes have in common, so that their mean has it too
    baseline_log: float = 0.0  # of how many times as long the baseline took by the clock; 0 if there is none
    before: float | None = None
    after: float | None = None

    @property
    def deviation(self) -> float:
        return math.hypot(self.error, self.shared)

    def times(self, confidence: float) -> Speedup:
        """Return how many times as fast the later engine is."""
        margin = deviations_allowed(confidence, 1) * self.deviation
        return Speedup(middle=math.exp(self.log), low=math.exp(self.log - margin), high=math.exp(self.log + margin))

    @property
    def is_mostly_the_baseline(self) -> bool:
        """Tell whether most of the change is the baseline's, so that the machine or another PyTorch caused it."""
        return abs(self.baseline_log) > BASELINE_DRIFT and self.baseline_log / self.log > MOST_OF_A_CHANGE


SpeedChanges = Mapping[str, SpeedChange]  # by figure


def deviations_allowed(confidence: float, figures: int) -> float:
    """Return how many standard errors are left to chance, if the confidence is to hold for all figures together."""
    return NormalDist().inv_cdf(1 - (1 - confidence) / figures / 2)


def standard_error(low: float, high: float, confidence: float) -> float:
    return math.log(high / low) / 2 / NormalDist().inv_cdf((1 + confidence) / 2)


def speed_change_between(before: Ratio, old: Benchmark, after: Ratio, new: Benchmark) -> SpeedChange:
    errors = (standard_error(one.low, one.high, of.confidence) for one, of in ((before, old), (after, new)))
    return SpeedChange(
        batch=after.batch,
        log=math.log(after.median / before.median),
        error=math.hypot(*errors, BETWEEN_RUNS, BETWEEN_RUNS),
        shared=math.sqrt(2) * AS_OPENED,
        baseline_log=math.log(_baseline_p50(after, new) / _baseline_p50(before, old)),
        before=before.median,
        after=after.median,
    )


def _baseline_p50(ratio: Ratio, benchmark: Benchmark) -> float:
    for each in benchmark.latencies:
        if (each.contender, each.batch) == (ratio.baseline, ratio.batch):
            return each.p50
    raise EnginewrightError(f"{benchmark.precision}: {ratio.baseline} has no latency at batch {ratio.batch}")


def combine(speed_changes: Sequence[SpeedChange]) -> SpeedChange:
    # Errors at different batch sizes are independent. Several baselines at one batch size share the engine's timings.
    batches = {each.batch for each in speed_changes}
    errors = [mean(each.error for each in speed_changes if each.batch == batch) for batch in batches]
    return SpeedChange(
        batch=None,
        log=mean(each.log for each in speed_changes),
        error=math.hypot(*errors) / len(errors),
        shared=max(each.shared for each in speed_changes),
        baseline_log=mean(each.baseline_log for each in speed_changes),
    )


def compare_runs(
    before: Measurements, after: Measurements, confidence: float, raced: Mapping[str, SpeedChanges] | None = None
) -> list[Change]:
    """Compare every figure of the precisions that both runs have. `confidence` holds for all figures together: how sure
    it is that nothing is called a change if nothing changed. Engines that were `raced` need no ratios to PyTorch."""
    raced = raced or {}
    pairs = common_precisions(before, after)
    if not pairs:
        raise EnginewrightError("the two runs have no precision in common")
    speeds = [raced.get(new.precision) or _ratio_pairs(old.benchmark, new.benchmark) for old, new in pairs]
    deviations = deviations_allowed(confidence, figures=sum(len(each) + 2 for each in speeds))
    named = ((each, getattr(before.machine, each), getattr(after.machine, each)) for each in Identity.model_fields)
    others = (f"another {name.replace('_', ' ')}: {was} and {now}" for name, was, now in named if was != now)
    elsewhere, best = next(others, None), best_pace(before, after)
    changes: list[Change] = []
    for old, new in pairs:
        if new.precision in raced:
            speed = judge_race(new.precision, raced[new.precision], deviations)
        else:
            speed = _compare_speed(old, new, deviations, elsewhere, best)
        used_alike = old.benchmark.cuda_graph == new.benchmark.cuda_graph and same_versions(before, after)
        is_same_engine = old.files and old.files == new.files and used_alike
        changes += map(_without_engine_change, speed) if is_same_engine else speed
        changes += _compare_results(old, new, deviations)
    return changes


def common_precisions(before: Measurements, after: Measurements) -> list[tuple[Measurement, Measurement]]:
    return [(old, new) for old in before.precisions for new in after.precisions if old.precision == new.precision]


def same_versions(before: Measurements, after: Measurements) -> bool:
    return all(getattr(before.machine, name) == getattr(after.machine, name) for name in VERSIONS)


def best_pace(*runs: Measurements) -> float:
    """Return the best machine pace at which any precision was timed: how fast the machine can be."""
    paces = (entry.benchmark.pace.microseconds for run in runs for entry in run.precisions)
    return min((pace for pace in paces if pace is not None), default=0.0)


def judge_race(precision: str, speed_changes: SpeedChanges, deviations: float) -> list[Change]:
    """Judge an engine race. If it leaves too much to chance, only the batch sizes with a clear change are judged."""
    everything, *batches = _judge_speed_changes(precision, speed_changes, deviations)
    slack = everything.slack or 0.0
    if everything.outcome is Outcome.NO_CHANGE and slack > MOST_CHANCE_IN_A_RACE:
        why = f"even side by side, {slack:.0%} may be chance on a busy machine: measure again"
        clear = [change for change in batches if change.outcome is not Outcome.NO_CHANGE]
        return [not_comparable(precision, TOGETHER, why, again=True), *clear]
    return [everything, *batches]


def _compare_speed(
    old: Measurement, new: Measurement, deviations: float, elsewhere: str | None, best: float
) -> list[Change]:
    """Compare ratios to PyTorch at each batch size, and all together, if their conditions were the same."""
    pairs, problem = _ratio_pairs(old.benchmark, new.benchmark), elsewhere
    if old.benchmark.threads != new.benchmark.threads:
        problem = problem or f"{counted(old.benchmark.threads, 'thread')} and {new.benchmark.threads}"
    if old.benchmark.pytorch != new.benchmark.pytorch:
        problem = problem or f"another PyTorch: {old.benchmark.pytorch} and {new.benchmark.pytorch}"
    if problem or not pairs:
        return [not_comparable(new.precision, "speed", problem or "no baseline and batch size in common")]
    for timed in (new, old):
        if problem := _slower_machine(timed.benchmark, best):
            # A loss that is too large for a slow machine to cause is one; anything smaller is not comparable.
            all_together = combine([speed_change_between(a, old.benchmark, b, new.benchmark) for a, b in pairs])
            limit = math.log(LARGEST_MACHINE_EFFECT)
            if all_together.log < -limit and not all_together.is_mostly_the_baseline:
                return [judge_factor(new.precision, TOGETHER, all_together.log, limit)]
            return [not_comparable(new.precision, "speed", problem, again=timed is new)]
    # A ratio that is noisy in either run is not comparable: its interval is narrower than the truth.
    speed_changes: dict[str, SpeedChange] = {}
    noisy = []
    for before, after in pairs:
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


def _ratio_pairs(before: Benchmark, after: Benchmark) -> list[tuple[Ratio, Ratio]]:
    later = {(ratio.baseline, ratio.batch): ratio for ratio in after.ratios}
    return [(old, later[key]) for old in before.ratios if (key := (old.baseline, old.batch)) in later]


def _slower_machine(timed: Benchmark, best: float) -> str | None:
    # Two runs on a slow machine cannot be compared with each other either: ratios scatter several times as much there.
    pace = timed.pace.microseconds
    if problems := machine_problems(timed):
        return f"{problems[0]} while one was timed: measure again"
    if pace is None:
        return "the machine never kept to one pace while one was timed: measure again"
    if pace > SAME_PACE * best:
        return f"the machine was {best / pace:.2f} times as fast as it can be while one was timed: measure again"
    return None


def _judge_speed_changes(precision: str, speed_changes: SpeedChanges, deviations: float) -> list[Change]:
    def judge(figure: str, speed: SpeedChange) -> Change:
        change = judge_factor(precision, figure, speed.log, deviations * speed.deviation, speed.before, speed.after)
        if change.outcome is Outcome.NO_CHANGE or not speed.is_mostly_the_baseline:
            return change
        times = math.exp(-speed.baseline_log)
        why = f"the baseline itself was {times:.2f} times as fast, most of the change: measure again"
        return not_comparable(precision, figure, why, again=True)

    judged = {figure: judge(figure, each) for figure, each in speed_changes.items()}
    comparable = [speed_changes[name] for name, one in judged.items() if one.outcome is not Outcome.NOT_COMPARABLE]
    everything = [judge(TOGETHER, combine(comparable))] if comparable else []
    return [*everything, *judged.values()]


def _without_engine_change(change: Change) -> Change:
    """Blame the machine for a change if the engine is the same file: it cannot be slower than itself."""
    if not change.is_better_or_worse:
        return change
    why = f"{change.change:+.1%}, but the engine is the same file to the byte, so it is the machine: measure again"
    return not_comparable(change.precision, change.figure, why, again=True)


def _compare_results(old: Measurement, new: Measurement, deviations: float) -> list[Change]:
    was, now, precision = old.validation, new.validation, new.precision
    if was.samples != now.samples:
        why = f"one was validated with {was.samples} {was.kind}, the other with {now.samples}"
        return [not_comparable(precision, now.metric, why)]
    if was.samples_sha256 and now.samples_sha256 not in ("", was.samples_sha256):
        return [not_comparable(precision, now.metric, f"they were validated with other {now.kind}")]
    errors = (was.engine_against_pytorch.relative, now.engine_against_pytorch.relative)
    closer = math.log((errors[0] + NO_ERROR) / (errors[1] + NO_ERROR))
    shares = (old.executed_as_asked, new.executed_as_asked)
    executed = judge_difference(precision, "executed as asked", shares[1] - shares[0], 0, *shares)
    if executed.is_better_or_worse and new.asked_by and old.asked_by not in ("", new.asked_by):
        # Another graph may ask for less: a search may have spared layers.
        executed = executed.model_copy(update={"outcome": Outcome.CHANGED})
    return [
        *_compare_metric(was, now, deviations),
        judge_factor(precision, "relative error", closer, MORE_ERROR, *errors),
        executed,
    ]


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
