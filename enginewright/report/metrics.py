"""The findings as numbers: for `dvc metrics diff`, named with their units, and a row for each point of DVC's plots."""

from typing import Any

import pandas as pd

from enginewright.measure.records import ENGINE, Validation
from enginewright.report.evidence import Evidence, Findings, known_p99
from enginewright.report.verdict import choose, milliseconds, verdict_on


def metrics(findings: Findings) -> dict[str, Any]:
    choice = choose(findings)
    return {
        "recommended": "none" if not choice else choice.engine.precision if choice.is_sure else "undecided",
        **_known({"pytorch": _results(findings.precisions[0].validation, "reference")}),
        **{entry.precision: _of_precision(entry, findings) for entry in findings.precisions},
    }


def _of_precision(entry: Evidence, findings: Findings) -> dict[str, Any]:
    validation, errors = entry.validation, entry.validation.engine_against_pytorch
    peak = entry.benchmark.peak_memory[ENGINE]
    digits = max(2, len(str(max(findings.batches))))  # DVC sorts keys as text: zeros keep batch 4 before batch 16
    return _known(
        {
            "passed": validation.passed,
            **_results(validation, "engine", "drop"),
            "same_answer_%": _percent(validation.agreement.share if validation.agreement else None),
            "cosine": round(errors.cosine, 6),
            "relative_error_ppm": _digits(1e6 * errors.relative),  # DVC shows five decimals; fp32's error has more
            "executed_as_asked_%": _percent(entry.engine.share_as_asked),
            "engine_MB": round(entry.engine.bytes / 1e6, 1),
            "peak_MB": round(peak.host),
            "peak_GPU_MB": round(peak.device) if peak.device else None,
            **{f"batch_{batch:0{digits}d}": _of_batch(entry, batch, findings) for batch in findings.batches},
        }
    )


def _results(validation: Validation, *figures: str) -> dict[str, Any]:
    """Return the metrics of the task by keys such as accuracy_%, and their drops by keys such as accuracy_drop_%."""
    found = {}
    for one in validation.results:
        for figure in figures:
            parts = one.name.replace(" ", "_"), "drop" if figure == "drop" else "", one.unit
            value = getattr(one, figure)
            found["_".join(filter(None, parts))] = _percent(value) if one.unit else round(value, 5)
    return found


def _of_batch(entry: Evidence, batch: int, findings: Findings) -> dict[str, Any]:
    """Return the speeds with one call at a time, and the highest rate with any number of requests in flight. At the
    batch size of the race, the median and the speed-up are the race's."""
    latency, is_raced = entry.latency(batch), batch == findings.race.batch
    ratio = findings.quoted(entry) if is_raced else entry.ratio(batch, findings.baselines[0])
    figures = {
        "p50_ms": _digits(milliseconds(findings, entry.precision) if is_raced else latency.p50),
        "p99_ms": None if (p99 := known_p99(latency)) is None else _digits(p99),
        "images_per_s": round(latency.images_per_second),
        "images_per_s_at_most": round(max(entry.images_per_second(one) for one in entry.throughputs(batch))),
        "speedup": _digits(ratio.median),
    }
    return _known(figures)


def _percent(share: float | None) -> float | None:
    return None if share is None else round(100 * share, 2)


def _digits(value: float) -> float:
    return float(f"{value:.3g}")


def _known(figures: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not measured: it is not zero."""
    return {name: value for name, value in figures.items() if value not in (None, {})}


def latency_rows(findings: Findings) -> pd.DataFrame:
    """Return a row for each engine and batch size."""
    return pd.DataFrame(
        {"precision": entry.precision, **entry.latency(batch).model_dump(exclude={"contender"})}
        for entry in findings.precisions
        for batch in findings.batches
    )


def tradeoff_rows(findings: Findings) -> pd.DataFrame:
    """Return a row for each precision: its error and its speed."""
    return pd.DataFrame(
        {
            "precision": entry.precision,
            "metric": (main := entry.validation.main) and main.written(main.engine),
            "relative_error": entry.validation.engine_against_pytorch.relative,
            "speedup": findings.quoted(entry).median,
            "speedup_low": findings.quoted(entry).low,
            "speedup_high": findings.quoted(entry).high,
            "verdict": verdict_on(findings, entry),
        }
        for entry in findings.precisions
    )
