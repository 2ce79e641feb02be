"""The report: what was found and which precision to ship, as a page, a summary, metrics and pictures. And the gate,
which fails the run after the report is complete."""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_folder, write_text
from enginewright.core.params.all import Params
from enginewright.measure.history import read_history
from enginewright.measure.records import Measurements, Verdict
from enginewright.report.evidence import EvidencePaths, gather_background, gather_findings
from enginewright.report.metrics import latency_rows, metrics, tradeoff_rows
from enginewright.report.page.pictures import gather_examples, trend_rows, write_pictures
from enginewright.report.page.render import render_page, write_summary
from enginewright.report.verdict import choose, doubt, failures_of, sentence


class ReportPaths(NamedTuple):
    engines: Path
    validation: Path
    benchmark: Path
    trace: Path
    race: Path
    examples: Path
    machine: Path
    simplified: Path
    calibrated: Path
    converted: Path
    tools: Path
    page: Path
    history: Path
    summary: Path
    verdict: Path
    measurements: Path
    metrics_file: Path
    plots: Path
    figures: Path


def report(params: Params, paths: ReportPaths) -> None:
    """Write report.html, summary.md, verdict.json, measurements.json, metrics.json, the plots' data and the figures."""
    precisions = params.precisions
    places = EvidencePaths(
        paths.engines, paths.converted, paths.validation, paths.benchmark, paths.trace, paths.race, paths.machine
    )
    found = gather_findings(precisions, places)
    failures = failures_of(found, {name: section.must_pay for name, section in precisions.items()})
    findings = replace(found, failures=failures)
    background = gather_background(params, paths.simplified, paths.calibrated, paths.converted, paths.tools)
    nights, shown = trend_rows(read_history(paths.history)), gather_examples(findings, paths.examples)
    with new_folder(paths.figures) as unfinished:
        write_pictures(findings, nights, unfinished)
    with new_folder(paths.plots) as unfinished:
        latency_rows(findings).to_csv(unfinished / "latency.csv", index=False, float_format="%.6g")
        tradeoff_rows(findings).to_csv(unfinished / "tradeoff.csv", index=False, float_format="%.6g")
    write_text(paths.metrics_file, json.dumps(metrics(findings), indent=2) + "\n")
    write_text(paths.page, render_page(findings, background, nights, shown))
    write_text(paths.summary, write_summary(findings, len(nights) > 0))
    measured = tuple(entry.measured for entry in findings.precisions)
    Measurements(machine=findings.machine, precisions=measured).write(paths.measurements)
    choice = choose(findings)
    unsure = {each.precision: few for each in measured if (few := each.validation.not_enough_samples)}
    sure = choice.engine.precision if choice and choice.is_sure else None
    offered = choice.engine.precision if choice and not choice.is_sure else None
    why = doubt(findings)
    Verdict(recommended=sure, offered=offered, doubt=why, failures=failures, unsure=unsure).write(paths.verdict)
    print(f"{sentence(findings).replace('*', '')}\nMore in {paths.page}")


def gate(verdict: Path, summary: Path) -> None:
    """Read the verdict, and write nothing."""
    found = Verdict.read(verdict)
    failures = [f"{name}: {', '.join(why)}" for name, why in found.failures.items() if why]
    unsure = [f"{name}: {', '.join(why)}" for name, why in found.unsure.items()]
    if not found.failures:
        raise EnginewrightError(f"{verdict} judges no precision, so none is within its thresholds: run `dvc repro`")
    if failures:
        raise EnginewrightError(f"{'; '.join(failures)}. The report is complete: see {summary}")
    if unsure:
        raise EnginewrightError(
            f"not enough samples to be sure, as validation.must_be_sure asks: {'; '.join(unsure)}. The report is "
            f"complete: see {summary}"
        )
    print(f"within their thresholds: {', '.join(found.failures)}")
