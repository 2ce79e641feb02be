"""The report: what was found and which precision to ship, as a page, a summary, metrics and pictures."""

import json
from dataclasses import replace
from pathlib import Path

from enginewright.core.files import new_file, new_folder
from enginewright.core.params.all import Params
from enginewright.measure.changes import Measurements, Verdict
from enginewright.measure.history import read_history
from enginewright.report.evidence import Places, gather_background, gather_findings
from enginewright.report.metrics import latency_rows, metrics, tradeoff_rows
from enginewright.report.page.pictures import gather_examples, trend_rows, write_pictures
from enginewright.report.page.render import render_page, write_summary
from enginewright.report.verdict import choose, doubt, failures_of, sentence


def report(
    params: Params,
    engines: Path,
    validation: Path,
    benchmark: Path,
    trace: Path,
    race: Path,
    examples: Path,
    machine: Path,
    simplified: Path,
    calibrated: Path,
    converted: Path,
    tools: Path,
    page: Path,
    history: Path,
    summary: Path,
    verdict: Path,
    measurements: Path,
    metrics_file: Path,
    plots: Path,
    figures: Path,
) -> None:
    """Write report.html, summary.md, verdict.json, measurements.json, metrics.json, the plots' data and the figures."""
    precisions = params.precisions
    places = Places(engines, converted, validation, benchmark, trace, race, machine)
    found = gather_findings(precisions, places)
    failures = failures_of(found, {name: section.must_pay for name, section in precisions.items()})
    findings = replace(found, failures=failures)
    background = gather_background(params, simplified, calibrated, converted, tools)
    nights, shown = trend_rows(read_history(history)), gather_examples(findings, examples)
    with new_folder(figures) as unfinished:
        write_pictures(findings, nights, unfinished)
    with new_folder(plots) as unfinished:
        latency_rows(findings).to_csv(unfinished / "latency.csv", index=False, float_format="%.6g")
        tradeoff_rows(findings).to_csv(unfinished / "tradeoff.csv", index=False, float_format="%.6g")
    with new_file(metrics_file) as temporary:
        temporary.write_text(json.dumps(metrics(findings), indent=2) + "\n", encoding="utf-8")
    with new_file(page) as temporary:
        temporary.write_text(render_page(findings, background, nights, shown), encoding="utf-8")
    with new_file(summary) as temporary:
        temporary.write_text(write_summary(findings, len(nights) > 0), encoding="utf-8")
    measured = tuple(entry.measured for entry in findings.precisions)
    Measurements(machine=findings.machine, precisions=measured).write(measurements)
    choice = choose(findings)
    unsure = {each.precision: few for each in measured if (few := each.validation.not_enough_samples)}
    sure = choice.engine.precision if choice and choice.is_sure else None
    offered = choice.engine.precision if choice and not choice.is_sure else None
    Verdict(recommended=sure, offered=offered, doubt=doubt(findings), failures=failures, unsure=unsure).write(verdict)
    print(f"{sentence(findings).replace('*', '')}\nMore in {page}")
