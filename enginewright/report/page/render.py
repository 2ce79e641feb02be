"""The report as one HTML page that needs nothing but a browser."""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from enginewright.core.facts import QUANTIZED, RUNTIMES
from enginewright.core.text import file_size
from enginewright.measure.records import baseline_title
from enginewright.report import tables, where_time_goes
from enginewright.report.evidence import Background, Evidence, Findings
from enginewright.report.notes import noise_by_batch, notes_on
from enginewright.report.page import causes, pictures
from enginewright.report.page.choices import (
    blocks_table,
    candidates_table,
    describe_search,
    rescue_table,
    search_pictures,
)
from enginewright.report.page.listing import facts, latencies, of_frame, overview, throughputs
from enginewright.report.page.nights import draw_trends
from enginewright.report.page.pictures import Drawn
from enginewright.report.summary import batch_key, key_of
from enginewright.report.verdict import choose, disturbance, doubt, why
from enginewright.report.where_time_goes import left_table, times_of, what_is_left
from enginewright.report.wording import device

HERE = Path(__file__).parent
AGAINST = "Against PyTorch, on the full validation set; in brackets 95 % intervals, paired for the drop"
MOST_FOLDED = 50  # layers of each engine that follow the slowest
FIRST_HISTOGRAMS = 6  # are shown at once, any other when it is chosen
MOST_CLASSES = 50
MOST_NIGHTS = 60  # rows, one for each night and precision


def render_page(
    findings: Findings,
    background: Background,
    failures: Mapping[str, tuple[str, ...]],
    nights: pd.DataFrame,
    examples: Mapping[str, Sequence[Drawn]] | None = None,
) -> str:
    return (
        open_templates()
        .get_template("page.html")
        .render(
            findings=findings,
            background=background,
            machine=device(findings.machine),
            runtime=f"{RUNTIMES[findings.machine.runtime].title} {findings.machine.runtime_version}",
            **_verdict(findings, failures),
            **_measured(findings, failures),
            **_explained(findings, background),
            examples=examples or {},
            trends=draw_trends(nights) if len(nights) else [],
            nights=of_frame("The latest nights", _readable_nights(nights)) if len(nights) else None,
        )
    )


@cache  # which keeps the compiled templates, too
def open_templates(*more: Path) -> Environment:
    """Return the templates of pages, and those in other folders. All have the same style and script."""
    environment = Environment(
        loader=FileSystemLoader([HERE, *more]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        breakable=breakable, code=with_code, title_of=baseline_title, file_size=file_size, key_of=key_of
    )
    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        style=Markup((HERE / "page.css").read_text(encoding="utf-8")), script=Markup(script), script_digest=digest
    )
    return environment


def _readable_nights(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the latest nights as a table, the last one first."""
    last = rows.tail(MOST_NIGHTS).iloc[::-1]
    frame = pd.DataFrame(
        {
            "precision": last["precision"],
            "times PyTorch": last["speedup"].map("{:.2f}".format),
            "result": [_night_result(*each) for each in zip(last["metric"], last["accuracy"], strict=True)],
            "relative error": last["relative_error"].map("{:.1e}".format),
            "verdict": last["verdict"].map(str),
            "revision": last["revision"],
            "setting": last["setting"],
        }
    )
    return frame.set_axis(last["date"].map("{:%Y-%m-%d %H:%M}".format).rename("night"))


def _night_result(metric: str, value: float | None) -> str:
    return "-" if pd.isna(value) else f"{metric} {value:.2%}"


def with_code(text: str) -> Markup:
    """Turn text between backticks into code."""
    parts = (Markup("<code>{}</code>").format(part) if odd % 2 else part for odd, part in enumerate(text.split("`")))
    return Markup("").join(parts)  # which escapes the rest


def breakable(name: str) -> Markup:
    """Allow a line break after each dot of a dotted name."""
    return Markup("<wbr>").join(re.split(r"(?<=\.)(?=[a-z])", name))


def _verdict(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    choice = choose(findings)
    return {
        "disguised": any(not entry.engine.runs_its_precision for entry in findings.precisions),
        "chosen": choice.engine if choice else None,
        "why": why(findings, choice) + disturbance(findings, choice) if choice else "",
        "doubt": with_code(doubt(findings, choice)) if choice else "",
        "batch_key": batch_key(findings, findings.tuned_batch),
        "notes": notes_on(findings, failures),
        "noise": noise_by_batch(findings),
        "overview": overview(findings, failures),
    }


def _measured(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    looks = pictures.looks_of(findings, failures)
    costs, gpu, by_size = tables.cost_table(findings), tables.gpu_table(findings), tables.size_table(findings)
    return {
        "tradeoff": causes.tradeoff_pictures(findings, looks),
        "accuracy": of_frame(AGAINST, tables.accuracy_table(findings)),
        "blame": of_frame("Where the error arises, as relative error", tables.blame_table(findings)),
        "spots": of_frame(tables.explain_spots(findings), tables.spot_table(findings)),
        "latency": [pictures.latency_picture(findings, looks, batch) for batch in findings.batches],
        "sizes": pictures.size_pictures(findings, looks),
        "by_size": of_frame("Median ms per batch by size; in parentheses, times as fast as the baseline", by_size)
        if len(by_size)
        else None,
        "raced": of_frame("The race of all engines, which decides", tables.race_table(findings)),
        "latencies": latencies(findings),
        "costs": of_frame("What a batch costs: a fixed part, and a part per image", costs) if len(costs) else None,
        "compute": of_frame("Compute without copies, median ms by the GPU's clock", tables.compute_table(findings))
        if findings.machine.device == "cuda"
        else None,
        "own_process": tables.explain_own_process(findings),
        "tf32": tables.explain_tf32(findings),
        "gpu": of_frame("The state of the GPU during the race", gpu) if len(gpu) else None,
        "throughput": [pictures.throughput_picture(findings, looks, batch) for batch in findings.batches],
        "throughputs": throughputs(findings),
        "contradiction": f" {tables.CONTRADICTION}" if findings.throughput_contradicts_race else "",
        "memory": pictures.memory_pictures(findings, looks),
        "memories": of_frame("Memory and size", tables.memory_table(findings)),
        "executed": [pictures.executed_picture(entry) for entry in findings.precisions if entry.engine.layers],
        "executions": of_frame("Executed precision of the compute layers", tables.executed_table(findings)),
        "left": [
            of_frame(f"What {entry.precision} leaves in floats", left_table(entry))
            for entry in findings.precisions
            if what_is_left(entry)
        ],
        "errors": causes.error_pictures(findings, looks),
    }


def _explained(findings: Findings, background: Background) -> dict[str, Any]:
    histograms = causes.histogram_pictures(background)
    chosen = Counter(background.calibration.methods.values())
    simplification = background.simplification
    return {
        "histograms": histograms,
        "method_costs": ", ".join(f"{cost:.2%} by {method}" for method, cost in background.calibration.costs.items()),
        "methods_chosen": ", ".join(f"{method} for {count}" for method, count in chosen.most_common()),
        "scaled": [name for name, each in background.rescues.items() if "equalize" in each.kept],
        "rescues": [rescue_table(each) for each in background.rescues.values()],
        "searches": [
            (describe_search(each), search_pictures(each, times_of(each, findings, background.makers)))
            for each in background.searches.values()
        ],
        "mixes": [(candidates_table(entry.mix), blocks_table(entry.mix)) for entry in findings.precisions if entry.mix],
        "reshaped": len(background.histograms.tensors) - len(background.drawn_tensors),
        "first_histograms": FIRST_HISTOGRAMS,
        "operators": causes.operator_picture(background),
        "nodes": causes.describe_nodes(simplification),
        "simplified": simplification.nodes_before != simplification.nodes_after,
        "slowest": {
            entry.precision: _readable(where_time_goes.slowest_layers(entry, findings), "Slowest layers of", entry)
            for entry in findings.precisions
        },
        "next_slowest": {
            entry.precision: of_frame(f"Further layers of {entry.precision}", others)
            for entry in findings.precisions
            if (others := where_time_goes.next_slowest_layers(entry, MOST_FOLDED)) is not None
        },
        "costs_of_quantizing": {
            where_time_goes.gained_and_lost(entry): _readable(
                where_time_goes.cost_of_quantizing(entry, findings), "Layers that became slower in", entry
            )
            for entry in findings.precisions
            if entry.precision in QUANTIZED
        },
        "params": facts("Parameters", background.params.model_dump(mode="json", by_alias=True)),
        "machine_facts": facts("Machine", findings.machine.model_dump()),
        "tools": facts("Tools that shape the graphs", background.tools.versions),
        "files": facts("Files, by SHA-256", _hashes(findings, background)),
        "most_classes": MOST_CLASSES,
    }


def _readable(parts: where_time_goes.Parts, caption: str, entry: Evidence) -> list[Any]:
    return [part if isinstance(part, str) else of_frame(f"{caption} {entry.precision}", part) for part in parts]


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
