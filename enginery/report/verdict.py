"""The verdict: the precision to ship, and the reason for it."""

from collections.abc import Mapping

from enginery.core.params.precisions import MustPay
from enginery.report.evidence import Evidence, Findings
from enginery.report.noise import reasons, slowdowns
from enginery.report.payoff import too_slow
from enginery.report.wording import metric_beside
from enginery.speed.noise_limits import LARGEST_MACHINE_EFFECT
from enginery.speed.records import baseline_title

AS_FAST = 1.03  # each engine is timed in a process of its own, and two runs of one engine differ by about as much
RAN_AS = "ran as"
MEASURE_AGAIN = "dvc repro --force --single-item benchmark && dvc repro"


def recommend(findings: Findings) -> Evidence | None:
    """Return the fastest engine that may be shipped; if several are as fast, the one closest to PyTorch."""
    if not (passed := shippable(findings)):
        return None
    fastest = min(entry.latency(findings.tuned_batch).p50 for entry in passed)
    as_fast = [entry for entry in passed if entry.latency(findings.tuned_batch).p50 <= AS_FAST * fastest]
    return min(as_fast, key=lambda entry: entry.validation.engine_against_pytorch.relative)


def shippable(findings: Findings) -> list[Evidence]:
    return [
        entry
        for entry in findings.precisions
        if entry.validation.passed and entry.engine.runs_its_precision and entry.delivers
    ]


def verdict_on(entry: Evidence, failures: Mapping[str, tuple[str, ...]]) -> str:
    if failures.get(entry.precision):
        return "failed"
    if entry.validation.not_enough_samples:
        return "not sure"
    if entry.mix and not entry.delivers:
        return f"is {entry.mix.made_as}" if entry.mix.is_one else "not raced"
    return "passed" if entry.engine.runs_its_precision else f"{RAN_AS} {entry.engine.ran_as}"


def doubts(findings: Findings, chosen: Evidence) -> list[str]:
    """Return why to measure again before believing the recommendation."""
    found = reasons(findings, chosen, findings.quoted(chosen))
    best = chosen.latency(findings.tuned_batch).p50
    for precision, times in slowdowns(findings).items():
        entry = next(entry for entry in findings.precisions if entry.precision == precision)
        if entry is not chosen and entry.latency(findings.tuned_batch).p50 / times < AS_FAST * best:
            found.append(f"the machine was {times:.2f} times as slow while {precision} was timed, which may be faster")
    return found


def is_certain(findings: Findings, chosen: Evidence) -> bool:
    """Tell whether the choice holds: there are no doubts, or it wins by more than a bad machine can explain."""
    if not doubts(findings, chosen):
        return True
    others = [findings.quoted(entry).median for entry in shippable(findings) if entry is not chosen]
    return all(findings.quoted(chosen).median > LARGEST_MACHINE_EFFECT * other for other in others)


def why(findings: Findings, chosen: Evidence) -> str:
    """Say what sets the choice apart from the other precisions that may be shipped."""
    batch = findings.tuned_batch
    others = [entry for entry in shippable(findings) if entry is not chosen]
    if not others:
        return "It is the only precision that stayed within its thresholds and did not run as another type."
    nearest = min(others, key=lambda entry: entry.latency(batch).p50)
    if nearest.latency(batch).p50 <= chosen.latency(batch).p50:
        return f"{nearest.precision} is as fast, and {chosen.precision} is closer to PyTorch."
    gain = findings.quoted(chosen).median / findings.quoted(nearest).median
    of_all = f"It is the fastest of the {len(others) + 1} precisions that may be shipped"
    return f"{of_all}, {gain:.2f} times as fast as the next, {nearest.precision}."


def failures_of(findings: Findings, must_pay: Mapping[str, MustPay | None]) -> dict[str, tuple[str, ...]]:
    """Return by precision the broken thresholds, and the speed that is not worth the loss."""
    slow = too_slow(findings, must_pay)
    judged = {
        entry.precision: entry.validation.broken + ((slow[entry.precision],) if entry.precision in slow else ())
        for entry in findings.precisions
    }
    return judged | {name: (slow[name],) for name in findings.refused if name in slow}


def sentence(findings: Findings) -> str:
    if not (chosen := recommend(findings)):
        if any(entry.validation.not_enough_samples for entry in findings.precisions):
            return "**Ship none of them:** samples are too few to be sure of any, as validation.must_be_sure asks."
        return "**Ship none of them:** no precision stayed within its thresholds."
    baseline, batch = findings.baselines[0], findings.tuned_batch
    ratio, validation, engine = findings.quoted(chosen), chosen.validation, chosen.engine
    found, opening, closing = "; ".join(doubts(findings, chosen)), f"**Ship {chosen.precision}:**", ""
    if not is_certain(findings, chosen):
        opening = (
            f"**Measure again:** {chosen.precision} would be the one to ship, but the timings cannot be relied on: "
            f"{found}; `{MEASURE_AGAIN}`. As measured, it is"
        )
    elif found:
        closing = f" **Measure again:** {found}. The choice does not depend on it; `{MEASURE_AGAIN}`."
    agreed, agreement = validation.agreement, ""
    if agreed:
        agreement = f", and the same answer as {validation.reference} for {agreed.share:.2%} of {agreed.among}"
    return (
        f"{opening} {ratio.median:.2f} times as fast as {baseline_title(baseline)} at batch {batch} "
        f"({ratio.low:.2f} to {ratio.high:.2f} within this run), "
        f"{metric_beside(validation)}{agreement}. "
        f"The engine takes {engine.size_in_words}.{closing}"
    )
