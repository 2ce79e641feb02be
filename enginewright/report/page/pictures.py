"""Pictures of what was measured, of what explains it, and of speed and error from night to night."""

import base64
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from enginewright.core.facts import QUANTIZED
from enginewright.core.text import counted, figure, first_few
from enginewright.graph.simplify import Simplification
from enginewright.measure.examples import EXAMPLES, Example, Examples
from enginewright.measure.history import GATE, History
from enginewright.measure.records import ENGINE, Outcome, baseline_title
from enginewright.measure.timing import WIDEST_INTERVAL
from enginewright.precision.records import Search
from enginewright.report.evidence import Evidence, Findings, known_p99
from enginewright.report.page.charts import (
    Axes,
    Curve,
    Dot,
    Mark,
    Point,
    Row,
    bar,
    dot,
    draw_curves,
    draw_points,
    draw_rows,
)
from enginewright.report.page.picture import Figure, Picture, Scale, around, decades, from_zero, short, write_figures
from enginewright.report.verdict import recommend

LEAST_ERROR = 1e-8  # below what float32 resolves
LEAST_MARGIN = -100  # percent: below it the answer is another one in any case
MOST_LAYERS = 40  # of a search that are drawn, those that lose most
MOST_NIGHTS = 60  # that are drawn of a machine and model
LOOKS_OF_NIGHTS = {Outcome.NOT_COMPARABLE: "hollow", Outcome.REGRESSION: "failed", GATE: "failed"}


def looks_of(findings: Findings) -> dict[str, str]:
    """Return how each precision is drawn: the one to ship stands out, failed and disguised ones are marked."""
    looks = {one.precision: "plain" if one.engine.runs_its_precision else "hollow" for one in findings.precisions}
    looks |= {name: "failed" for name in looks if findings.failures.get(name)}
    if chosen := recommend(findings):
        looks[chosen.precision] = "strong"
    return looks


def write_pictures(findings: Findings, nights: pd.DataFrame, folder: Path) -> None:
    """Write the pictures of the summary as files."""
    parts = {
        "tradeoff": {"": tradeoff_pictures(findings)},
        "latency": {"": latency_pictures(findings)},
        "throughput": {"": throughput_pictures(findings)},
    }
    if sizes := size_pictures(findings):
        parts["sizes"] = {"": sizes}
    if within := within_pictures(findings):
        parts["within"] = {"": within}
    if trends := draw_trends(nights):
        parts["trend"] = trends
    for name, drawn in parts.items():
        write_figures(folder / f"{name}.svg", drawn)


def tradeoff_pictures(findings: Findings) -> list[Figure]:
    """Draw error against speed, and the metric against speed; if that is not known, the share of same answers."""
    validations = [entry.validation for entry in findings.precisions]
    errors = [max(one.engine_against_pytorch.relative, LEAST_ERROR) for one in validations]
    speeds = from_zero(1.1 * findings.quoted(entry).high for entry in findings.precisions)
    faster = f"times as fast as {baseline_title(findings.baselines[0])}, batch {findings.race.batch}"
    axes = Axes(speeds, decades(errors, LEAST_ERROR), faster, "relative error of the outputs")
    drawn = _draw_against_speed("error", findings, axes, [(error, short(error)) for error in errors], less=True)
    pictures = [Figure("Lower is closer to PyTorch", drawn)]
    results = [one.main for one in validations if one.main]
    agreed = [one.agreement for one in validations if one.agreement]
    if len(results) == len(validations):
        name, unit, less = results[0].name, results[0].unit, not results[0].higher_is_better
        answers, beside = [one.engine for one in results], f"{name}, %" if unit else name
    elif len(agreed) == len(validations):
        name, unit, less = "same answer as PyTorch", "%", False
        answers, beside = [one.share for one in agreed], f"{name}, % of {findings.kind}"
    else:  # answers can be neither right nor the same
        return pictures
    values = [(100 * value if unit else value, figure(value, unit)) for value in answers]
    scale = around((height for height, _ in values), most=100 if unit else math.inf)
    drawn = _draw_against_speed("answers", findings, Axes(speeds, scale, faster, beside), values, less)
    return [*pictures, Figure(f"{'Lower' if less else 'Higher'} is better: {name}", drawn)]


def _draw_against_speed(
    key: str, findings: Findings, axes: Axes, values: Sequence[tuple[float, str]], less: bool
) -> Picture:
    points, looks = [], looks_of(findings)
    for entry, (value, text) in zip(findings.precisions, values, strict=True):
        ratio = findings.quoted(entry)
        tooltip = f"{entry.precision}: {ratio.median:.2f} times as fast, {axes.beside} {text}"
        name = entry.precision + (" *" if (ratio.high - ratio.low) / ratio.median > WIDEST_INTERVAL else "")
        points.append(Point(name, *ratio, value, looks[entry.precision], tooltip))
    described = f"{'; '.join(point.tooltip for point in points)}."
    return draw_points(f"tradeoff-{key}", f"{axes.beside} against speed", described, points, axes, less)


def latency_pictures(findings: Findings) -> list[Figure]:
    """Draw the latencies by batch size: p50 is a dot, p90 ends the line, p99 is a tick if there are enough calls."""
    pictures = []
    for batch in findings.batches:
        rows = []
        for label, look, entry, contender in _contenders(findings):
            latency = entry.latency(batch, contender)
            p50, p99 = f"{short(latency.p50)} ms", known_p99(latency)
            tooltip = f"p50 {p50}, p90 {short(latency.p90)} ms" + (f", p99 {short(p99)} ms" if p99 else "")
            marks = [Mark("range", latency.p50, p99, "thin"), Mark("tick", p99, p99)] if p99 else []
            marks += [Mark("range", latency.p50, latency.p90), dot(latency.p50, tooltip=tooltip)]
            rows.append(Row(label, tuple(marks), p50, look))
        drawn = draw_rows(f"latency-{batch}", f"Median latency at batch {batch}", rows, "ms per batch")
        pictures.append(Figure(f"Batch {batch}", drawn))
    return pictures


def _contenders(findings: Findings) -> list[tuple[str, str, Evidence, str]]:
    """Return the label and the look of each, beside whose figures it was timed, and its name there: the baselines, as
    they ran beside the first precision, and then the engines."""
    first, looks = findings.precisions[0], looks_of(findings)
    baselines = [(baseline_title(name), "faint", first, name) for name in findings.baselines]
    return baselines + [(entry.precision, looks[entry.precision], entry, ENGINE) for entry in findings.precisions]


def size_pictures(findings: Findings) -> list[Figure]:
    """Draw the median latencies over an axis of the user's, such as the length of texts."""
    if not (sizes := findings.precisions[0].benchmark.sizes):
        return []
    curves = []
    for title, look, entry, contender in _contenders(findings):
        points = tuple(
            (each.size, one.p50)
            for each in entry.benchmark.sizes
            for one in each.latencies
            if one.contender == contender
        )
        dots = tuple(Dot(x, y, look, f"{title}, {sizes[0].axis} {x:.0f}: {short(y)} ms") for x, y in points)
        curves.append(Curve(title, points, look, dots))
    places = [point for curve in curves for point in curve.points]
    across = Scale(min(x for x, _ in places), max(x for x, _ in places) or 1.0)
    if across.low == across.high:
        across = from_zero([across.high])
    axes = Axes(across, from_zero(y for _, y in places), sizes[0].axis, "ms per batch, p50")
    title = f"Latency by {sizes[0].axis} at batch {sizes[0].latencies[0].batch}"
    return [Figure(title, draw_curves("latency-sizes", title, "Medians of each contender at each size.", curves, axes))]


def throughput_pictures(findings: Findings) -> list[Figure]:
    """Draw the rates by batch size, with a bar for each number of requests in flight, and say the highest."""
    pictures, kind = [], findings.kind
    for batch in findings.batches:
        rows = []
        for label, look, entry, contender in _contenders(findings):
            if contender == ENGINE:
                rates = {one.requests: entry.images_per_second(one) for one in entry.throughputs(batch)}
            else:
                rates = {1: entry.latency(batch, contender).images_per_second}
            bars = []
            for requests, rate in rates.items():
                lighter = " lighter" if requests == 1 and len(rates) > 1 else ""
                bars.append(bar(rate, f"{look}{lighter}", f"{rate:,.0f} {kind}/s, {counted(requests, 'request')}"))
            rows.append(Row(label, tuple(bars), f"{max(rates.values()):,.0f}", look))
        drawn = draw_rows(f"throughput-{batch}", f"Throughput at batch {batch}", rows, f"{kind}/s, at most")
        pictures.append(Figure(f"Batch {batch}", drawn))
    return pictures


def within_pictures(findings: Findings) -> list[Figure]:
    """Draw the samples a second at random times over the latency, as simulated; what was run is a dot."""
    curves, looks, title = [], looks_of(findings), "Throughput over latency, at random times"
    for entry in findings.precisions:
        if found := entry.benchmark.within:
            look, ran = looks[entry.precision], [found.at_random] if found.at_random else []
            dots = tuple(Dot(one.p99, one.images_per_second, look, one.in_words) for one in ran)
            curves.append(Curve(entry.precision, found.curve, look, dots))
    if not curves:
        return []
    places = [place for curve in curves for place in (*curve.points, *(dot[:2] for dot in curve.dots))]
    across, up = from_zero(x for x, _ in places), from_zero(y for _, y in places)
    axes = Axes(across, up, "ms that 99 of 100 stay within", f"{findings.kind}/s")
    each = (f"{one.label}: {', '.join(f'{y:,.0f} within {x:g} ms' for x, y in one.points)}" for one in curves)
    return [Figure(title, draw_curves("within", title, f"{'; '.join(each)}.", curves, axes))]


def error_pictures(findings: Findings) -> list[Figure]:
    """Draw how single samples differ from PyTorch: their errors, and what is left of the lead of its answer."""
    one = findings.kind[:-1]
    pictures = [Figure(f"Relative error of each {one}", _errors(findings))]
    if classifiers := [entry for entry in findings.precisions if entry.validation.spread.margin_kept]:
        pictures.append(
            Figure("How much of its lead PyTorch's answer keeps", _margins(classifiers, looks_of(findings)))
        )
    return pictures


def _errors(findings: Findings) -> Picture:
    curves, figures, looks = [], [], looks_of(findings)
    for entry in findings.precisions:
        spread = entry.validation.spread
        errors = [max(error, LEAST_ERROR) for error in spread.relative_error]
        points = zip((100 * share for share in spread.shares), errors, strict=True)
        curves.append(Curve(entry.precision, tuple(points), looks[entry.precision]))
        median = short(errors[spread.shares.index(0.5)])
        figures.append(f"{entry.precision}: median {median}, worst {short(errors[-1])}")
    y = decades((error for curve in curves for _, error in curve.points), LEAST_ERROR)
    axes = Axes(Scale(0, 100), y, f"% of {findings.kind}, the closest to PyTorch first", "relative error")
    return draw_curves("errors", f"Relative error of single {findings.kind}", f"{'; '.join(figures)}.", curves, axes)


def _margins(entries: Sequence[Evidence], looks: Mapping[str, str]) -> Picture:
    rows = []
    for entry in entries:
        spread = entry.validation.spread
        worst, low, median = (100 * spread.margin_kept[spread.shares.index(share)] for share in (0.0, 0.01, 0.5))
        lines = (Mark("range", worst, low, "thin"), Mark("range", low, median), Mark("tick", low, low))
        marks = (*lines, dot(worst, tooltip="the closest call"))
        value = f"{worst:.0f}%" if worst > LEAST_MARGIN else f"under {LEAST_MARGIN}%"
        rows.append(Row(entry.precision, marks, value, looks[entry.precision]))
    least = min(0.0, *(100 * entry.validation.spread.margin_kept[0] for entry in entries))
    title = "How much of its lead PyTorch's answer keeps where it keeps least"
    return draw_rows("margins", title, rows, "% of PyTorch's lead", Scale(max(LEAST_MARGIN, least), 100), beside=0)


def describe_search(found: Search) -> str:
    words, (_, tried, others) = found.in_words(), found.samples
    samples = f", on {tried} calibration samples; {others} others judged the answer" if found.layers else ""
    return f"{words[0].upper()}{words[1:]}{samples}."


def search_pictures(found: Search) -> list[Figure]:
    """Draw the path of the search, and what the layers lose that lose most; nothing if there was no need to search."""
    if len(found.path) < 2:
        return []
    return [
        Figure("The sets of layers that were tried, the fewest first", _draw_path(found)),
        Figure(f"What {found.precision} costs each layer alone, in the order of the graph", _draw_losses(found)),
    ]


def _draw_path(found: Search) -> Picture:
    rows = []
    for step in sorted(found.path, key=lambda step: step.spared):
        is_answer = step.spared == len(found.spared)
        length = bar(100 * min(step.spent, 2), "strong" if is_answer else "faint")
        label = f"{counted(step.spared, 'layer')}, {step.work:.0%} of the work"
        rows.append(Row(label, (length,), f"{step.spent:.0%}", "strong" if is_answer else "plain"))
    title = f"What is lost with the layers spared that {found.precision} loses most by"
    scale = from_zero([200.0 if any(step.spent > 1 for step in found.path) else 100.0])
    unit = "% of what the thresholds allow; up to 200 are drawn"
    return draw_rows("search-path", title, rows, unit, scale, beside=100)


def _draw_losses(found: Search) -> Picture:
    measured = [(layer, layer.loss) for layer in found.layers if layer.loss is not None]
    worst = {layer.name for layer, _ in sorted(measured, key=lambda pair: -pair[1])[:MOST_LAYERS]}
    rows = []
    for layer, loss in measured:
        is_spared = layer.name in found.spared
        mark = bar(100 * loss, "strong" if is_spared else "faint", layer.op_type)
        if layer.name in worst:
            rows.append(Row(layer.name, (mark,), f"{loss:.2%}", "strong" if is_spared else "plain"))
    unit = "relative error of the outputs, %; spared layers in colour"
    return draw_rows("search-losses", f"What {found.precision} costs each layer alone", rows, unit)


def describe_nodes(simplified: Simplification) -> str:
    """Say how many nodes there were and are, and which kinds of them are gone."""
    before, after = Counter(simplified.nodes_before), Counter(simplified.nodes_after)
    if before == after:
        return f"Nothing could be removed: {before.total()} nodes were exported, and all of them stayed."
    changes = [(what, kinds) for what, kinds in (("gone", before - after), ("new", after - before)) if kinds]
    counts = [f"{what}: {first_few([f'{n} {kind}' for kind, n in kinds.most_common()])}" for what, kinds in changes]
    return "; ".join([f"{before.total()} nodes became {after.total()}", *counts]) + "."


class Drawn(NamedTuple):
    """A sample on which an engine differs from PyTorch most, with its picture as an address that holds it."""

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
        files = folder / entry.precision
        if entry.precision in QUANTIZED or entry is chosen:
            for each in Examples.read(files / EXAMPLES).examples:
                content = base64.b64encode((files / each.file).read_bytes()).decode() if each.file else ""
                picture = f"data:image/jpeg;base64,{content}" if content else ""
                found.setdefault(entry.precision, []).append(Drawn(each, picture))
    return found


@dataclass(frozen=True)
class Dates(Scale):
    """A scale of nights side by side. A picture has room for three dates."""

    dates: tuple[str, ...] = ()

    @property
    def ticks(self) -> list[float]:
        return [float(place) for place in sorted({0, (len(self.dates) - 1) // 2, len(self.dates) - 1})]

    def tick_label(self, tick: float) -> str:
        return self.dates[int(tick)]


def trend_rows(histories: Sequence[History]) -> pd.DataFrame:
    """Return a row for each night and precision, from which the pictures are drawn."""
    return pd.DataFrame(
        {
            "setting": history.setting.title,
            **night.model_dump(include={"date", "precision", "relative_error"}),
            "speedup": night.speed(),
            "verdict": night.verdict,
        }
        for history in histories
        for night in sorted(history.nights(), key=lambda night: night.date)
    )


def draw_trends(rows: pd.DataFrame) -> dict[str, list[Figure]]:
    """Draw the rows that trend_rows makes. Return two pictures by machine and model; none before the first night."""
    if not len(rows):
        return {}
    settings = rows.groupby("setting", sort=False)
    return {str(setting): _of_setting(f"nights-{number}", of) for number, (setting, of) in enumerate(settings)}


def _of_setting(key: str, rows: pd.DataFrame) -> list[Figure]:
    dates = sorted(rows["date"].unique())[-MOST_NIGHTS:]
    nights = Dates(0, max(1, len(dates) - 1), dates=tuple(f"{date:%Y-%m-%d}" for date in dates))
    latest = rows[rows["date"].isin(dates)].assign(night=lambda found: found["date"].map(dates.index))
    speed = Axes(nights, from_zero(latest["speedup"]), "", "times PyTorch, mean of batch sizes")
    error = Axes(nights, decades(latest["relative_error"], LEAST_ERROR), "", "relative error of the logits")
    return [
        Figure("Higher is faster", _trend(f"{key}-speed", latest, "speedup", speed)),
        Figure("Lower is closer to PyTorch", _trend(f"{key}-error", latest, "relative_error", error)),
    ]


def _trend(key: str, rows: pd.DataFrame, figure: str, axes: Axes) -> Picture:
    """Draw a curve for each precision. The fastest of the last night stands out."""
    last = rows.groupby("precision", sort=False).last()
    curves = []
    for precision, nights in rows.groupby("precision", sort=False):
        points = tuple(zip(nights["night"], nights[figure], strict=True))
        look = "strong" if precision == last["speedup"].idxmax() else "plain"
        dots = [
            Dot(
                *point,
                LOOKS_OF_NIGHTS.get(verdict, look),
                f"{axes.x.tick_label(point[0])}: {short(point[1])}, {verdict}",
            )
            for point, verdict in zip(points, nights["verdict"], strict=True)
            if verdict in LOOKS_OF_NIGHTS or point is points[-1]
        ]
        curves.append(Curve(str(precision), points, look, tuple(dots)))
    figures = "; ".join(f"{name} {short(row[figure])}, {row['verdict']}" for name, row in last.iterrows())
    return draw_curves(key, f"{axes.beside}, night by night", f"The last night of each: {figures}.", curves, axes)
