"""The report as one HTML page that needs nothing but a browser, and as Markdown."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from enginewright.core.facts import QUANTIZED, RUNTIMES
from enginewright.core.files import templates_in
from enginewright.core.text import file_size
from enginewright.measure.records import RUNS_FOR_P99, baseline_title
from enginewright.report import tables, where_time_goes
from enginewright.report.evidence import Background, Findings
from enginewright.report.notes import noise_by_batch, notes_on
from enginewright.report.page import pictures
from enginewright.report.page.pictures import Drawn
from enginewright.report.verdict import choose, disturbance, doubt, sentence, why

HERE = Path(__file__).parent


def render_page(
    findings: Findings,
    background: Background,
    nights: pd.DataFrame,
    examples: Mapping[str, Sequence[Drawn]] | None = None,
) -> str:
    choice = choose(findings)
    facts = {
        **_shared(findings),
        "background": background,
        "chosen": choice.engine if choice else None,
        "why": why(findings) + disturbance(findings),
        "doubt": with_code(doubt(findings)),
        "overview": tables.overview(findings),
        "methods": Counter(background.calibration.methods.values()).most_common(),
        "scaled": [name for name, each in background.rescues.items() if "equalize" in each.kept],
        "left": [
            (f"What {entry.precision} leaves in floats", where_time_goes.left_table(entry))
            for entry in findings.precisions
            if where_time_goes.what_is_left(entry)
        ],
        "hashes": _hashes(findings, background),
        "examples": examples or {},
        "trends": pictures.draw_trends(nights),
        "charts": pictures,
    }
    return open_templates().get_template("page.html").render(facts)


def write_summary(findings: Findings, nights: bool = False) -> str:
    """Return the Markdown. `nights` tells whether there is a picture of the nights."""
    return (
        templates_in(HERE)
        .get_template("summary.md.j2")
        .render(
            **_shared(findings),
            verdict=sentence(findings),
            reason=why(findings),
            nights=nights,
            runs_for_p99=RUNS_FOR_P99,
        )
    )


def _shared(findings: Findings) -> dict[str, Any]:
    return {
        "findings": findings,
        "tables": tables,
        "where_time_goes": where_time_goes,
        "quantized": [entry for entry in findings.precisions if entry.precision in QUANTIZED],
        "machine": tables.device(findings.machine),
        "runtime": f"{RUNTIMES[findings.machine.runtime].title} {findings.machine.runtime_version}",
        "notes": notes_on(findings),
        "noise": noise_by_batch(findings),
    }


@cache  # which keeps the compiled templates, too
def open_templates(*more: Path) -> Environment:
    """Return the templates of pages, and those in other folders. All have the same style and script."""
    environment = templates_in(HERE, *more, of_pages=True)
    environment.filters |= {
        "breakable": breakable,
        "code": with_code,
        "columns": columns_of,
        "title_of": baseline_title,
        "file_size": file_size,
    }
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")), script=Markup(script), script_digest=digest
    )
    return environment


def columns_of(table: pd.DataFrame) -> list[tuple[str, bool]]:
    """Return the names of a table's columns, and whether each holds figures, by which a browser can sort it."""
    columns = [(str(table.index.name), table.index), *((str(name), table[name]) for name in table)]
    return [(name, all(re.match(r"-$|[-+]?\d", cell) for cell in cells)) for name, cells in columns]


def with_code(text: str) -> Markup:
    """Turn text between backticks into code."""
    parts = (Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(text.split("`")))
    return Markup("").join(parts)  # which escapes the rest


def breakable(name: str) -> Markup:
    """Allow a line break after each dot of a dotted name."""
    return Markup("<wbr>").join(re.split(r"(?<=\.)(?=[a-z])", name))


def _hashes(findings: Findings, background: Background) -> dict[str, Any]:
    found: dict[str, Any] = {
        "simplified model.onnx": background.calibration.model_sha256,
        "calibration samples": background.calibration.samples_sha256,
        "validation samples": findings.precisions[0].validation.samples_sha256,
        "calibration.cache": background.calibration.cache_sha256,
    }
    for entry in findings.precisions:
        found[f"{entry.precision} model.onnx"] = entry.engine.onnx_sha256
        found |= {f"{entry.precision} {name}": digest for name, digest in entry.engine.files.items()}
    return found
