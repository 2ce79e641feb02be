"""Which precision to ship, and why."""

from enginery.reporting.evidence import Evidence, Findings


def recommend(findings: Findings) -> Evidence | None:
    """The fastest precision that passed; where intervals overlap, the one closest to PyTorch among them."""
    baseline, batch = findings.baselines[0], findings.tuned_batch
    passed = [entry for entry in findings.precisions if entry.validation.passed and entry.is_what_it_says]
    if not passed:
        return None
    fastest = max(passed, key=lambda entry: entry.ratio(batch, baseline).median)
    as_fast = [entry for entry in passed if entry.ratio(batch, baseline).high >= fastest.ratio(batch, baseline).low]
    return min(as_fast, key=lambda entry: entry.validation.engine_against_pytorch.relative)


def sentence(findings: Findings) -> str:
    chosen = recommend(findings)
    if chosen is None:
        return "**Ship none of them:** no precision stayed within its thresholds."
    baseline, batch = findings.baselines[0], findings.tuned_batch
    ratio, validation, engine = chosen.ratio(batch, baseline), chosen.validation, chosen.engine
    return (
        f"**Ship {chosen.precision}:** {ratio.median:.2f} times as fast as PyTorch {baseline} at batch {batch} "
        f"({chosen.benchmark.confidence:.0%} interval {ratio.low:.2f} to {ratio.high:.2f}), "
        f"accuracy {validation.engine_accuracy:.2%} where PyTorch has {validation.reference_accuracy:.2%}, "
        f"and the same answer as PyTorch for {validation.engine_against_pytorch.top1_agreement:.2%} "
        f"of {validation.samples} images. The engine takes {engine.bytes / 1e6:.1f} MB."
    )
