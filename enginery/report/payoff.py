"""Whether a lower precision is worth its loss: it must be faster than the one named in params.yaml."""

from collections.abc import Mapping

from enginery.core.params.precisions import MustPay
from enginery.core.precisions import QUANTIZED
from enginery.core.text import first_few
from enginery.report.evidence import Evidence, Findings
from enginery.report.noise import reasons


def unpaid(findings: Findings, wanted: Mapping[str, MustPay | None]) -> dict[str, str]:
    """A sentence for each precision that is not as fast as it must be.

    Ratios to PyTorch are compared, not milliseconds: each was taken side by side.
    """
    entries = {entry.precision: entry for entry in findings.precisions}
    told = {name: _why_not(entries[name], entries[rule.over], rule, findings) for name, rule in wanted.items() if rule}
    return {precision: why for precision, why in told.items() if why}


def _why_not(entry: Evidence, named: Evidence, rule: MustPay, findings: Findings) -> str | None:
    if not entry.is_what_it_says:
        return f"none of it was executed in {entry.precision}, so it cannot pay as must_pay asks"
    other = _rival(named, findings)
    gain = _speed(entry, findings) / _speed(other, findings)
    if gain >= rule.times:
        return None
    asked = f"at batch {findings.tuned_batch}, and must_pay asks for {rule.times:g}"
    return (
        f"{gain:.2f} times as fast as {_told(named, other)} {asked}; "
        f"{_kept_back(entry)}{_doubt(entry, other, findings)}"
    )


def _speed(entry: Evidence, findings: Findings) -> float:
    return entry.ratio(findings.tuned_batch, findings.baselines[0]).median


def _rival(named: Evidence, findings: Findings) -> Evidence:
    """The named one, unless it ran as another: to be faster than a slow stand-in is no gain over what is there."""
    if named.is_what_it_says:
        return named
    real = [entry for entry in findings.precisions if entry.precision not in QUANTIZED and entry.is_what_it_says]
    return max([named, *real], key=lambda entry: _speed(entry, findings))


def _told(named: Evidence, other: Evidence) -> str:
    if named.is_what_it_says:
        return named.precision
    if other is named:
        return f"{named.precision}, which ran as {named.engine.ran_as},"
    return f"{other.precision} ({named.precision} ran as {named.engine.ran_as})"


def _kept_back(entry: Evidence) -> str:
    total, names = len(entry.compute_layers), [layer.name for layer in entry.not_as_asked]
    if not names:
        return f"none of its {total} compute layers ran in another precision"
    return f"{len(names)} of {total} compute layers ran in another: {first_few(names)}"


def _doubt(entry: Evidence, other: Evidence, findings: Findings) -> str:
    """The gate is red all the same: a gain that cannot be told from noise is none to rely on."""
    batch, baseline = findings.tuned_batch, findings.baselines[0]
    found = {one.precision: reasons(findings, one, one.ratio(batch, baseline)) for one in (entry, other)}
    noise = "; ".join(f"{name}: {why[0]}" for name, why in found.items() if why)
    return f". This rests on noisy ratios ({noise}): measure again" if noise else ""
