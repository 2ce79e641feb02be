"""The report as Markdown."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from enginewright.core.runtimes import RUNTIMES
from enginewright.core.templates import templates_in
from enginewright.report import tables
from enginewright.report.evidence import Findings
from enginewright.report.notes import noise_by_batch, notes_on
from enginewright.report.verdict import choose, sentence, why
from enginewright.report.where_time_goes import layer_sections
from enginewright.report.wording import device


def write_summary(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> str:
    environment = templates_in(Path(__file__).parent)
    environment.filters["markdown"] = _markdown
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
    )


def _markdown(table: pd.DataFrame) -> str:
    return str(table.to_markdown(disable_numparse=True))
