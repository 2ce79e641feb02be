"""Whether a lower precision is worth its loss: it must be faster than the one named in params.yaml."""

from collections.abc import Mapping

from enginery.core.params import MustPay
from enginery.reporting.evidence import Evidence, Findings

MOST_LAYERS = 5


def unpaid(findings: Findings, wanted: Mapping[str, MustPay | None]) -> dict[str, str]:
    """A sentence for each precision that is not as fast as it must be.

    Ratios to PyTorch are compared, not milliseconds: each was taken side by side.
    """
    entries = {entry.precision: entry for entry in findings.precisions}
    batch, baseline = findings.tuned_batch, findings.baselines[0]
    found = {}
    for precision, rule in wanted.items():
        if rule:
            entry, other = entries[precision], entries[rule.over]
            gain = entry.ratio(batch, baseline).median / other.ratio(batch, baseline).median
            if gain < rule.times:
                found[precision] = (
                    f"{gain:.2f} times as fast as {rule.over} at batch {batch}, and must_pay asks for {rule.times:g}; "
                    f"{_kept_back(entry)}"
                )
    return found


def _kept_back(entry: Evidence) -> str:
    compute = [layer for layer in entry.engine.layers if layer.computes]
    names = [layer.name for layer in compute if layer.precision not in entry.engine.as_asked]
    if not names:
        return f"none of its {len(compute)} compute layers ran in another precision"
    more = f" and {len(names) - MOST_LAYERS} more" if len(names) > MOST_LAYERS else ""
    return f"{len(names)} of {len(compute)} compute layers ran in another: {', '.join(names[:MOST_LAYERS])}{more}"
