"""Check that a lower precision is worth its loss: must_pay asks it to be faster than another one."""

from collections.abc import Mapping

from enginewright.core.params.precisions import MustPay
from enginewright.core.text import first_few
from enginewright.report.evidence import Evidence, Findings
from enginewright.speed.engines_race import Times


def too_slow(findings: Findings, wanted: Mapping[str, MustPay | None]) -> dict[str, str]:
    """Return a sentence for each precision that is not as fast as must_pay asks."""
    sentences = {name: _why_not(name, rule, findings) for name, rule in wanted.items() if rule}
    return {precision: sentence for precision, sentence in sentences.items() if sentence}


def _why_not(precision: str, rule: MustPay, findings: Findings) -> str | None:
    entries = {entry.precision: entry for entry in findings.precisions}
    entry, named = entries.get(precision), entries.get(rule.over)
    if entry is None or not entry.engine.runs_its_precision:
        return f"none of it was executed in {precision}, so it cannot be as fast as must_pay asks"
    rival = _rival(named, findings)
    if rival is None:
        return f"{rule.over} was not built, so nothing shows that it is as fast as must_pay asks"
    gain = findings.times(entry, rival)
    if gain.median >= rule.times:
        return None
    asked = f"at batch {findings.tuned_batch}, but must_pay asks for {rule.times:g}"
    return (
        f"{gain.median:.2f} times as fast as {_rival_title(rule.over, named, rival)} {asked}; "
        f"{_layers_not_as_asked(entry)}{_doubt(gain, rule.times, findings)}"
    )


def _rival(named: Evidence | None, findings: Findings) -> Evidence | None:
    """Return the precision to beat: the named one, or the fastest real one if the named one was not built or ran as
    another type."""
    if named and named.engine.runs_its_precision:
        return named
    # To beat only a slow stand-in would be no gain over the engines that there are.
    return max(
        [*([named] if named else []), *findings.floats], key=lambda entry: findings.quoted(entry).median, default=None
    )


def _rival_title(name: str, named: Evidence | None, rival: Evidence) -> str:
    if named is None:
        return f"{rival.precision} ({name} was not built)"
    if named.engine.runs_its_precision:
        return name
    if rival is named:
        return f"{name}, which ran as {named.engine.ran_as},"
    return f"{rival.precision} ({name} ran as {named.engine.ran_as})"


def _layers_not_as_asked(entry: Evidence) -> str:
    total, names = len(entry.engine.compute_layers), [layer.name for layer in entry.engine.not_as_asked]
    if not names:
        return f"none of its {total} compute layers ran in another precision"
    return f"{len(names)} of {total} compute layers ran in another precision: {first_few(names)}"


def _doubt(gain: Times, wanted: float, findings: Findings) -> str:
    """Return a warning if it may be as fast as is asked. The precision fails all the same: its gain is not proved."""
    disturbed = "".join(f"; {what}" for what in findings.race.disturbed)
    return f". It may be up to {gain.high:.2f} times{disturbed}: measure again" if gain.high >= wanted else ""
