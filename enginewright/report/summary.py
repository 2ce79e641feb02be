"""The report as Markdown."""

from collections.abc import Mapping
from pathlib import Path

from enginewright.core.facts import RUNTIMES
from enginewright.core.templates import templates_in
from enginewright.measure.speed_records import RUNS_FOR_P99
from enginewright.report import tables
from enginewright.report.evidence import Findings
from enginewright.report.notes import noise_by_batch, notes_on
from enginewright.report.verdict import choose, sentence, why
from enginewright.report.where_time_goes import layer_sections
from enginewright.report.wording import device


def write_summary(findings: Findings, failures: Mapping[str, tuple[str, ...]], nights: bool = False) -> str:
    """`nights` tells whether the pictures have one of speed and error from night to night."""
    environment = templates_in(Path(__file__).parent)
    environment.filters["markdown"] = tables.as_markdown
    choice = choose(findings)
    return environment.get_template("summary.md.j2").render(
        findings=findings,
        tables=tables,
        machine=device(findings.machine),
        runtime=f"{RUNTIMES[findings.machine.runtime].title} {findings.machine.runtime_version}",
        verdict=sentence(findings),
        reason=why(findings, choice) if choice else "",
        notes=notes_on(findings, failures),
        noise=noise_by_batch(findings),
        layers=layer_sections(findings),
        nights=nights,
        runs_for_p99=RUNS_FOR_P99,
    )
