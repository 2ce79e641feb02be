"""The verdict: the precision to ship, and the reason for it. All of it reads the one race of all engines."""

from collections.abc import Mapping
from typing import NamedTuple

from enginewright.core.params.precisions import MustPay
from enginewright.core.text import file_size, first_few
from enginewright.measure.records import baseline_title
from enginewright.report.evidence import Evidence, Findings

AS_FAST = 1.05  # an engine that is surely not slower than by this is as fast
WHILE_DISTURBED = 1.1  # how many times as fast an engine must surely be where others used the machine during the race
MEASURE_AGAIN = "dvc repro --force --single-item race && dvc repro"


def failures_of(findings: Findings, must_pay: Mapping[str, MustPay | None]) -> dict[str, tuple[str, ...]]:
    """Return by precision the broken thresholds, and the speed that is not worth the loss."""
    found = {entry.precision: entry.validation.broken for entry in findings.precisions}
    found |= {name: ("the compiler failed on it",) for name, refusal in findings.refused.items() if refusal.failed}
    for name, rule in must_pay.items():
        if rule and name in {*found, *findings.refused} and (too_slow := _why_too_slow(name, rule, findings)):
            found[name] = (*found.get(name, ()), too_slow)
    return found


def _why_too_slow(precision: str, rule: MustPay, findings: Findings) -> str | None:
    """Say why a precision is not worth its loss, if it is not as fast as must_pay asks."""
    entries = {entry.precision: entry for entry in findings.precisions}
    entry, named = entries.get(precision), entries.get(rule.over)
    if entry is None or not entry.engine.runs_its_precision:
        return f"none of it was executed in {precision}, so it cannot be as fast as must_pay asks"
    if named and named.engine.runs_its_precision:
        rival, title = named, str(rule.over)
    else:  # to beat only a slow stand-in would be no gain over the engines that there are
        others = [*([named] if named else []), *findings.floats]
        if not others:
            return f"{rule.over} was not built, so nothing shows that it is as fast as must_pay asks"
        rival = findings.fastest(others)
        what = f"ran as {named.engine.ran_as}" if named else "was not built"
        title = f"{rule.over}, which {what}," if rival is named else f"{rival.precision} ({rule.over} {what})"
    gain = findings.times(entry, rival)
    if gain.median >= rule.times:
        return None
    total, others_ran = len(entry.engine.compute_layers), [layer.name for layer in entry.engine.not_as_asked]
    layers = f"none of its {total} compute layers ran in another precision"
    if others_ran:
        layers = f"{len(others_ran)} of {total} compute layers ran in another precision: {first_few(others_ran)}"
    found = f"{gain.median:.2f} times as fast as {title} at batch {findings.race.batch}, but must_pay asks for "
    found += f"{rule.times:g}; {layers}"
    if gain.high < rule.times:
        return found
    # The precision fails all the same: its gain is not proved.
    disturbed = "".join(f"; {each}" for each in findings.race.disturbed)
    return f"{found}. It may be up to {gain.high:.2f} times{disturbed}: measure again"


class Choice(NamedTuple):
    """Hold what the race says of the engines that may be shipped."""

    engine: Evidence  # the one to ship, or one to offer where none is surely the fastest
    fastest: Evidence  # as measured
    as_fast: tuple[Evidence, ...]  # others that surely are as fast, if none is a rival
    rivals: tuple[Evidence, ...]  # others that the race cannot tell from the fastest, and then those that are as fast

    @property
    def is_sure(self) -> bool:
        return not self.rivals


def choose(findings: Findings) -> Choice | None:
    """Choose the fastest engine; of several that are surely as fast, the one closest to PyTorch. Where others cannot be
    told from the fastest, choose the one with the least drop, or else the smallest."""
    if not (passed := shippable(findings)):
        return None
    fastest = findings.fastest(passed)
    others = [entry for entry in passed if entry is not fastest]
    # Pairs may contradict each other: what another one beats is not as fast, whatever it is beside the fastest.
    near = [entry for entry in others if all(findings.times(each, entry).median <= AS_FAST for each in passed)]
    as_fast = tuple(entry for entry in near if findings.times(fastest, entry).high <= AS_FAST)
    rivals = tuple(entry for entry in others if entry not in as_fast and not is_faster(findings, fastest, entry))
    if rivals:
        rivals = (*rivals, *as_fast)
        offered = min([fastest, *rivals], key=lambda entry: (_drop(entry), entry.engine.bytes))
        return Choice(offered, fastest, (), rivals)
    closest = min([fastest, *as_fast], key=lambda entry: entry.validation.engine_against_pytorch.relative)
    return Choice(closest, fastest, as_fast, ())


def is_faster(findings: Findings, one: Evidence, other: Evidence) -> bool:
    """Tell whether one engine is surely faster than another, and by so much that it counts."""
    times = findings.times(one, other)
    return times.low > (WHILE_DISTURBED if findings.race.disturbed else 1.0) and times.high > AS_FAST


def recommend(findings: Findings) -> Evidence | None:
    """Return the engine to ship. There is none where no precision may be shipped, or the race cannot tell which."""
    choice = choose(findings)
    return choice.engine if choice and choice.is_sure else None


def _drop(entry: Evidence) -> float:
    main = entry.validation.main
    return round(max(main.drop, 0.0), 4) if main else 0.0


def shippable(findings: Findings) -> list[Evidence]:
    return [
        entry
        for entry in findings.precisions
        if entry.validation.passed and entry.engine.runs_its_precision and entry.delivers
    ]


def fastest_of(findings: Findings) -> Evidence:
    """Return the fastest precision that may be shipped, or else of all."""
    return findings.fastest(shippable(findings) or findings.precisions)


def milliseconds(findings: Findings, name: str) -> float:
    """Return the time of a batch in the race, as many times that of the fastest as in turns. Medians of all calls,
    which are no turns, may come in another order where the machine is busy."""
    first = fastest_of(findings).precision
    return findings.race.milliseconds[first] * findings.race.times(first, name).median


def verdict_on(findings: Findings, entry: Evidence) -> str:
    if findings.failures.get(entry.precision):
        return "failed"
    if entry.validation.not_enough_samples:
        return "not sure"
    if entry.mix and not entry.delivers:
        return f"is {entry.mix.made_as}" if entry.mix.is_one else "not raced"
    return "passed" if entry.engine.runs_its_precision else f"ran as {entry.engine.ran_as}"


def caveats(findings: Findings, entry: Evidence) -> tuple[str, ...]:
    """Return why a precision did not pass, or else why its figures may be doubted."""
    mix = (entry.mix.in_words(),) if entry.mix and not entry.delivers else ()
    failures = findings.failures.get(entry.precision)
    return failures or entry.validation.not_enough_samples or mix or findings.race.disturbed


def sentence(findings: Findings) -> str:
    if not (choice := choose(findings)):
        if any(entry.validation.not_enough_samples for entry in findings.precisions):
            return "**Ship none of them:** samples are too few to be sure of any, as validation.must_be_sure asks."
        return "**Ship none of them:** no precision stayed within its thresholds."
    chosen, ratio, validation = choice.engine, findings.quoted(choice.engine), choice.engine.validation
    opening = f"**Ship {chosen.precision}:**" if choice.is_sure else f"**Measure again:** {doubt(findings)} It is"
    accuracy, agreement = f"{validation.metric} not measured ({validation.lacking})", ""
    if main := validation.main:
        accuracy = f"{main.name} {main.written(main.engine)} where {validation.reference} has "
        accuracy += main.written(main.reference)
    if agreed := validation.agreement:
        agreement = f", and the same answer as {validation.reference} for {agreed.share:.2%} of {agreed.among}"
    return (
        f"{opening} {ratio.median:.2f} times as fast as {baseline_title(findings.baselines[0])} at batch "
        f"{findings.race.batch} ({ratio.low:.2f} to {ratio.high:.2f} within this run), {accuracy}{agreement}. "
        f"The engine takes {chosen.engine.size_in_words}.{disturbance(findings)}"
    )


def doubt(findings: Findings) -> str:
    """Say which engines cannot be told apart, and which one is offered meanwhile; nothing if the choice is sure."""
    choice = choose(findings)
    if not choice or choice.is_sure:
        return ""
    offered, fastest, alike = choice.engine, choice.fastest, [choice.fastest, *choice.rivals]
    *first, last = (entry.precision for entry in alike)
    times = ", ".join(
        f"{fastest.precision} {_interval(findings, fastest, rival)} times as fast as {rival.precision}"
        for rival in choice.rivals
    )
    surely = f", beside which only what is surely more than {WHILE_DISTURBED} times as fast counts"
    because = f" ({'; '.join(findings.race.disturbed)}{surely})" if findings.race.disturbed else ""
    metric, closest = offered.validation.metric, [entry for entry in alike if _drop(entry) == _drop(offered)]
    them = "them" if len(closest) == len(alike) else f"those that lose the least {metric}"
    merit = f"whose engine is the smallest of {them}, {file_size(offered.engine.bytes)}"
    if len(closest) == 1:
        merit = f"whose {metric} is the best of them"
    return (
        f"{', '.join(first)} and {last} cannot be told apart on this machine today{because}: {times}. "
        f"Run it when it is idle: `{MEASURE_AGAIN}`. Meanwhile {offered.precision} is offered, {merit}."
    )


def why(findings: Findings) -> str:
    """Say what sets a sure choice apart from the other precisions that may be shipped."""
    choice = choose(findings)
    if not choice or not choice.is_sure:
        return ""
    chosen, others = choice.engine, [entry for entry in shippable(findings) if entry is not choice.engine]
    if not others:
        return "It is the only precision that stayed within its thresholds and did not run as another type."
    if choice.as_fast:
        names = [entry.precision for entry in (choice.fastest, *choice.as_fast) if entry is not chosen]
        are = "is" if len(names) == 1 else "are"
        return f"{' and '.join(names)} {are} as fast, and {chosen.precision} is closer to PyTorch."
    next_one = min(others, key=lambda entry: findings.times(chosen, entry).median)
    gain = f"{findings.times(chosen, next_one).median:.2f} times ({_interval(findings, chosen, next_one)}) as fast"
    of_all = f"the {len(others) + 1} precisions that may be shipped"
    return f"It is the fastest of {of_all}, {gain} as the next, {next_one.precision}."


def _interval(findings: Findings, one: Evidence, other: Evidence) -> str:
    times = findings.times(one, other)
    return f"{times.low:.2f} to {times.high:.2f}"


def disturbance(findings: Findings) -> str:
    """Say what took the machine during a race whose choice is sure all the same."""
    disturbed = "; ".join(findings.race.disturbed)
    sure = disturbed and recommend(findings)
    return f" During the race {disturbed}: the choice holds, and figures may move." if sure else ""
