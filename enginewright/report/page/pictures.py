"""Pictures of what was measured: latency, throughput, memory, size, and the types that engines execute."""

import base64
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from enginewright.core.facts import QUANTIZED
from enginewright.core.params.measuring import EAGER
from enginewright.core.text import KILOBYTE, MEGABYTE, file_size
from enginewright.measure.examples import EXAMPLES, Example, Examples
from enginewright.measure.records import ENGINE, Latency, baseline_title
from enginewright.report.evidence import Evidence, Findings, curve_over_sizes
from enginewright.report.page.charts import Axes, Curve, Dot, Figure, Scale, draw_curves, from_zero, short
from enginewright.report.page.listing import Mark, Row, bar, dot, draw_rows
from enginewright.report.tables import known_p99
from enginewright.report.verdict import recommend

Looks = Mapping[str, str]


def looks_of(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> Looks:
    """Return how each precision is drawn: the one to ship stands out, failed and disguised ones are marked."""
    looks = {}
    for entry in findings.precisions:
        usual = "plain" if entry.engine.runs_its_precision else "hollow"
        looks[entry.precision] = "failed" if failures.get(entry.precision) else usual
    if chosen := recommend(findings):
        looks[chosen.precision] = "strong"
    return looks


def latency_picture(findings: Findings, looks: Looks, batch: int) -> Figure:
    """Draw the latencies: p50 is a dot, p90 ends the line, p99 is a tick if there are enough calls."""
    first = findings.precisions[0]  # the baselines are shown as they ran beside it
    raced = [(baseline_title(name), "faint", first.latency(batch, name)) for name in findings.baselines]
    raced += [(entry.precision, looks[entry.precision], entry.latency(batch)) for entry in findings.precisions]
    rows = [Row(label, _spread(latency), f"{short(latency.p50)} ms", look) for label, look, latency in raced]
    scale = from_zero(max(known_p99(latency) or 0, latency.p90) for _, _, latency in raced)
    title = f"Latency at batch {batch}"
    picture = draw_rows(f"latency-{batch}", title, rows, scale, "ms per batch", "Medians: ")
    return Figure(f"Batch {batch}", picture)


def size_pictures(findings: Findings, looks: Looks) -> list[Figure]:
    """Draw the median latencies over an axis of the user's, such as the length of texts."""
    first = findings.precisions[0]
    if not (sizes := first.benchmark.sizes):
        return []
    raced = [(baseline_title(name), "faint", first, name) for name in findings.baselines]
    raced += [(entry.precision, looks[entry.precision], entry, ENGINE) for entry in findings.precisions]
    curves = []
    for title, look, entry, contender in raced:
        points = tuple(curve_over_sizes(entry, contender))
        dots = tuple(Dot(x, y, look, f"{title}, {sizes[0].axis} {x:.0f}: {short(y)} ms") for x, y in points)
        curves.append(Curve(title, points, look, dots))
    places = [point for curve in curves for point in curve.points]
    across = Scale(min(x for x, _ in places), max(x for x, _ in places) or 1.0)
    if across.low == across.high:
        across = from_zero([across.high])
    axes = Axes(across, from_zero(y for _, y in places), sizes[0].axis, "ms per batch, p50")
    title = f"Latency by {sizes[0].axis} at batch {sizes[0].latencies[0].batch}"
    return [Figure(title, draw_curves("latency-sizes", title, "Medians of each contender at each size.", curves, axes))]


def _spread(latency: Latency) -> tuple[Mark, ...]:
    p99 = known_p99(latency)
    tooltip = f"p50 {short(latency.p50)} ms, p90 {short(latency.p90)} ms" + (f", p99 {short(p99)} ms" if p99 else "")
    return (
        *([Mark("range", latency.p50, p99, "thin"), Mark("tick", p99, p99)] if p99 else []),
        Mark("range", latency.p50, latency.p90),
        dot(latency.p50, tooltip=tooltip),
    )


def throughput_picture(findings: Findings, looks: Looks, batch: int) -> Figure:
    """Draw the rates, with a bar for each number of requests in flight."""
    first, kind = findings.precisions[0], findings.kind
    rows = []
    for name in findings.baselines:
        rate = first.latency(batch, name).images_per_second
        drawn = bar(rate, tooltip=f"{rate:,.0f} {kind}/s, 1 request")
        rows.append(Row(baseline_title(name), (drawn,), f"{rate:,.0f}", "faint"))
    for entry in findings.precisions:
        look, found = looks[entry.precision], entry.throughputs(batch)
        rates = [entry.images_per_second(one) for one in found]
        bars = []
        for one, rate in zip(found, rates, strict=True):
            single = one.requests == 1
            how = "1 request" if single else f"{one.requests} requests in flight"
            bars.append(bar(rate, f"{look} lighter" if single else look, f"{rate:,.0f} {kind}/s, {how}"))
        figures = " · ".join(f"{rate:,.0f}" for rate in rates)
        most = f"{max(rates):,.0f}" if len(rates) > 1 else ""
        rows.append(Row(entry.precision, tuple(bars), figures, look, most))
    title = f"Throughput at batch {batch}"
    picture = draw_rows(
        f"throughput-{batch}", title, rows, _longest(rows), f"{kind}/s", f"{kind.capitalize()} per second: "
    )
    return Figure(f"Batch {batch}", picture)


def memory_pictures(findings: Findings, looks: Looks) -> list[Figure]:
    """Draw sizes and peak memory. On a GPU, its memory follows that of the host in the same bar."""
    largest = max(entry.engine.bytes for entry in findings.precisions)
    unit, per = ("MB", MEGABYTE) if largest >= MEGABYTE else ("kB", KILOBYTE)
    sizes = [
        Row(entry.precision, (bar(entry.engine.bytes / per),), file_size(entry.engine.bytes), looks[entry.precision])
        for entry in findings.precisions
    ]
    first = findings.precisions[0]
    peaks = [_memory(first, EAGER, "PyTorch eager", "faint")] if EAGER in first.benchmark.peak_memory else []
    peaks += [_memory(entry, ENGINE, entry.precision, looks[entry.precision]) for entry in findings.precisions]
    where = " of the host + of the GPU" if any("+" in row.value for row in peaks) else ""
    return [
        Figure("Engine on disk", draw_rows("size", "Size of the engines", sizes, _longest(sizes), unit)),
        Figure(f"Peak memory{where}", draw_rows("peak", f"Peak memory{where}", peaks, _longest(peaks), "MB")),
    ]


def _memory(entry: Evidence, contender: str, label: str, look: str) -> Row:
    peak = entry.benchmark.peak_memory[contender]
    device = f" + {peak.device:.0f}" if peak.device else ""
    marks = [bar(peak.host, f"{look} lighter" if peak.device else look, "host")]
    if peak.device:
        marks.append(Mark("bar", peak.host, peak.host + peak.device, look, "GPU"))
    return Row(label, tuple(marks), f"{peak.host:.0f}{device} MB", look)


def executed_picture(entry: Evidence) -> Figure:
    """Draw the types of layers, strong if they run as asked, faint if they run in another type."""
    kinds: dict[str, Counter[str]] = {}
    for layer in sorted(entry.engine.layers, key=lambda layer: not layer.computes):
        kinds.setdefault(layer.kind.partition(" ")[0], Counter())[layer.precision] += 1
    computing = {layer.kind.partition(" ")[0] for layer in entry.engine.layers if layer.computes}
    rows = [_kind(kind, found, entry, kind in computing) for kind, found in kinds.items()]
    title = f"Types that {entry.precision} executes"
    picture = draw_rows(f"executed-{entry.precision}", title, rows, _longest(rows), "layers")
    return Figure(entry.precision, picture)


def _kind(kind: str, found: Counter[str], entry: Evidence, computes: bool) -> Row:
    marks, start = [], 0
    for precision, count in sorted(found.items(), key=lambda pair: pair[0] not in entry.engine.accepted):
        look = "plain" if precision in entry.engine.accepted else "other"
        marks.append(Mark("bar", start, start + count, look, f"{count} {precision}"))
        start += count
    return Row(kind, tuple(marks), ", ".join(mark.tooltip for mark in marks), "plain" if computes else "faint")


def _longest(rows: Sequence[Row]) -> Scale:
    return from_zero(mark.end for row in rows for mark in row.marks)


# The samples on which engines differ from PyTorch most, as pictures within the page.


class Drawn(NamedTuple):
    """An example with its picture, as an address that holds it."""

    example: Example
    picture: str  # empty for a text

    @property
    def caption(self) -> str:
        same, lead = self.example.same, self.example.lead
        if lead is not None:
            return f"{self.example.sample}: " + (f"{lead:.0%} of the lead left" if same else "another answer")
        return self.example.sample + ("" if same is None else f": {same:.0%} the same")


def gather_examples(findings: Findings, folder: Path) -> dict[str, list[Drawn]]:
    """Return examples of the precision to ship and of quantized ones: others hardly differ, and the page is kept."""
    chosen = recommend(findings)
    found: dict[str, list[Drawn]] = {}
    for entry in findings.precisions:
        if entry.precision in QUANTIZED or (chosen and entry.precision == chosen.precision):
            files = folder / entry.precision
            drawn = [
                Drawn(each, _address(files / each.file) if each.file else "")
                for each in Examples.read(files / EXAMPLES).examples
            ]
            found |= {entry.precision: drawn} if drawn else {}
    return found


def _address(file: Path) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(file.read_bytes()).decode()}"
