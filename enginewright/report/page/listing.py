"""Tables of the page. A browser can sort their cells by the figure with which a text begins."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd
from markupsafe import Markup

from enginewright.core.text import file_size
from enginewright.measure.records import ENGINE, Latency, baseline_title
from enginewright.report.evidence import Evidence, Findings
from enginewright.report.page.charts import LETTER, NARROW, TEXT_HEIGHT, WIDE, Picture, Scale, wrapped
from enginewright.report.summary import batch_key, key_of
from enginewright.report.tables import known_p99
from enginewright.report.verdict import RAN_AS, recommend, verdict_on
from enginewright.report.wording import engine_metric, percent, reasons

NOT_BUILT = "not built"
FIGURE = re.compile(r"-$|[-+]?\d")


class Cell(NamedTuple):
    text: str
    metric: str | None = None  # the place of the same figure in metrics.json

    @property
    def look(self) -> str:
        return "bad" if self.text == "failed" else "faint" if self.text.startswith((RAN_AS, NOT_BUILT)) else ""


class Table(NamedTuple):
    caption: str
    columns: tuple[tuple[str, bool], ...]  # the name of each, and whether it holds figures
    rows: tuple[tuple[Cell, ...], ...]
    strong: str | None = None  # the first cell of the row that stands out


def table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[Cell | str]]) -> Table:
    cells = tuple(tuple(cell if isinstance(cell, Cell) else Cell(cell) for cell in row) for row in rows)
    figures = [bool(cells) and all(FIGURE.match(row[number].text) for row in cells) for number in range(len(columns))]
    return Table(caption, tuple(zip(columns, figures, strict=True)), cells)


def of_frame(caption: str, frame: pd.DataFrame) -> Table:
    rows = [[str(cell) for cell in row] for row in frame.fillna("-").itertuples()]
    return table(caption, [str(frame.index.name or ""), *map(str, frame.columns)], rows)


def overview(findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> Table:
    batch, baseline = findings.tuned_batch, findings.baselines[0]
    columns = (
        "precision", "verdict", f"times {baseline_title(baseline)}", f"ms per batch of\N{NO-BREAK SPACE}{batch}",
        findings.precisions[0].validation.metric, "same answer", "relative error", "engine", "peak memory, MB",
    )  # fmt: skip
    rows = [_at_a_glance(entry, findings, failures) for entry in findings.precisions]
    rows += [[Cell(name), Cell(NOT_BUILT), *[Cell("-")] * (len(columns) - 2)] for name in findings.refused]
    chosen = recommend(findings)
    return table("Every precision at a glance", columns, rows)._replace(strong=chosen.precision if chosen else None)


def _at_a_glance(entry: Evidence, findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> list[Cell]:
    name, batch, validation = entry.precision, findings.tuned_batch, entry.validation
    timed = f"{name}.{batch_key(findings, batch)}"
    ratio = findings.quoted(entry)
    agreed = None if validation.agreement is None else f"{name}.same_answer_%"
    known = None if validation.main is None else f"{name}.{key_of(validation.main)}"
    return [
        Cell(name),
        Cell(verdict_on(entry, failures)),
        Cell(f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})", f"{timed}.speedup"),
        Cell(f"{findings.race.milliseconds[name]:.2f}", f"{timed}.p50_ms"),
        Cell(engine_metric(validation), known),
        Cell(percent(validation.same_answers), agreed),
        Cell(f"{validation.engine_against_pytorch.relative:.1e}", f"{name}.relative_error_ppm"),
        Cell(file_size(entry.engine.bytes), f"{name}.engine_MB"),
        Cell(f"{entry.benchmark.peak_memory[ENGINE].host:.0f}", f"{name}.peak_MB"),
    ]


def latencies(findings: Findings) -> Table:
    """List each contender at each batch size. Ratios are to the baseline that ran beside the engine."""
    columns = ["contender", "batch", "p50, ms", "p90, ms", "p99, ms", f"{findings.kind}/s"]
    columns += [f"times {baseline_title(name)} (interval)" for name in findings.baselines]
    return table("Latency and how many times as fast", columns, list(_latency_rows(findings)))


def _latency_rows(findings: Findings) -> Iterator[list[Cell | str]]:
    first = findings.precisions[0]
    for name in findings.baselines:
        for batch in findings.batches:
            title, no_ratios = f"{baseline_title(name)}, beside {first.precision}", ["-"] * len(findings.baselines)
            yield [title, str(batch), *_times(first.latency(batch, name)), *no_ratios]
    for entry in findings.precisions:
        for batch in findings.batches:
            key = f"{entry.precision}.{batch_key(findings, batch)}"
            ratios: list[Cell | str] = []
            for name in findings.baselines:
                ratio = entry.ratio(batch, name)
                star = " *" if reasons(findings, entry, ratio) else ""
                text = f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f}){star}"
                ratios.append(Cell(text, f"{key}.speedup" if name == findings.baselines[0] else None))
            yield [entry.precision, str(batch), *_times(entry.latency(batch), key), *ratios]


def _times(latency: Latency, key: str | None = None) -> list[Cell]:
    return [
        Cell(f"{latency.p50:.2f}", key and f"{key}.p50_ms"),
        Cell(f"{latency.p90:.2f}"),
        Cell("-") if (p99 := known_p99(latency)) is None else Cell(f"{p99:.2f}", key and f"{key}.p99_ms"),
        Cell(f"{latency.images_per_second:,.0f}", key and f"{key}.images_per_s"),
    ]


def throughputs(findings: Findings) -> Table:
    rows = [
        [
            entry.precision,
            str(one.batch),
            str(one.requests),
            f"{entry.images_per_second(one):,.0f}" + (" *" if one.requests > 1 and entry.contradicts_race(one) else ""),
            f"{entry.gain(one):.2f}",
            f"{one.p50:.2f}",
            "-" if (p99 := known_p99(one)) is None else f"{p99:.2f}",
        ]
        for entry in findings.precisions
        for one in entry.benchmark.throughput
    ]
    each = (f"{findings.kind}/s", "times one at a time", "p50, ms per request", "p99, ms per request")
    return table("Throughput", ("precision", "batch", "requests in flight", *each), rows)


def facts(caption: str, found: Mapping[str, Any]) -> Table:
    """List names and values. Nested sections become dotted names."""
    return table(caption, ("name", "value"), [[name, value] for name, value in _flat(found, "")])


def _flat(found: Mapping[str, Any], place: str) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{place}{name}.")
        else:
            yield f"{place}{name}", _written(value)


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    listed = ", ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return "-" if listed in ("", None, {}) else str(listed)


# The usual picture: a row for each thing, with marks on a common scale and the figure at the right.

ROW, THICK, BETWEEN = 30, 11, 2
LEAST_LEFT, LEAST_RIGHT = 106, 84  # pixels: pictures beside each other begin and end alike
AXIS = 34  # pixels for the ticks and the unit below
FEW_TICKS = 3  # have room on a phone; if there are more, every other one is hidden there


class Mark(NamedTuple):
    kind: Literal["bar", "range", "dot", "tick"]
    start: float
    end: float
    look: str = ""
    tooltip: str = ""


class Row(NamedTuple):
    label: str
    marks: tuple[Mark, ...]
    value: str
    look: str = "plain"  # strong for what to look at, faint for what to compare it with
    most: str = ""  # the largest of several figures, because a phone has room for one


def bar(value: float, look: str = "", tooltip: str = "") -> Mark:
    return Mark("bar", 0, value, look, tooltip)


def dot(value: float, look: str = "", tooltip: str = "") -> Mark:
    return Mark("dot", value, value, look, tooltip)


def draw_rows(
    key: str, title: str, rows: Sequence[Row], scale: Scale, unit: str, about: str = "", beside: float | None = None
) -> Markup:
    """Draw the rows. `about` says what their figures are; `beside` is a place on the scale to compare them with."""
    description = about + "; ".join(f"{row.label} {row.value}" for row in rows) + "."
    heights = [
        max(ROW, TEXT_HEIGHT * len(wrapped(row.label)) + 8, (THICK + BETWEEN) * _lanes(row) + 10) for row in rows
    ]
    left = max(LEAST_LEFT, LETTER * max((len(line) for row in rows for line in wrapped(row.label)), default=0) + 12)
    right = max(LEAST_RIGHT, _width([row.value for row in rows]))
    shortened = any(row.most for row in rows)
    narrow = _width([row.most or row.value for row in rows]) if shortened else None
    picture = Picture(key, title, description, sum(heights), (6, right, AXIS, left), narrow)
    ticks = scale.ticks
    origin = ticks.index(0) if 0 in ticks else 0  # never hidden
    for number, tick in enumerate(ticks):
        place, hidden = scale.place(tick), f" {WIDE}" if len(ticks) > FEW_TICKS and (number - origin) % 2 else ""
        picture.line(place, 0, place, picture.height, f"grid{hidden}")
        picture.text(place, picture.height + 14, scale.tick_label(tick), f"tick middle{hidden}")
    _text(picture, 0, picture.height + 30, unit, f"{unit}, at most" if shortened else "", "tick")
    if beside is not None:
        picture.line(scale.place(beside), 0, scale.place(beside), picture.height, "beside")
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        _row(picture, row, scale, top, height)
        top += height
    return picture.markup()


def _lanes(row: Row) -> int:
    """Count the lanes of bars: a bar from zero has its own, any other bar continues the one before it."""
    return sum(mark.kind == "bar" and mark.start == 0 for mark in row.marks)


def _width(figures: Sequence[str]) -> float:
    """Return the pixels that the figures take at the right."""
    return max(map(len, figures), default=0) * LETTER + 14


def _text(picture: Picture, x: float, y: float, words: str, instead: str, look: str, shift: float = 0) -> None:
    """Write words, and others `instead` for a narrow picture if they are given."""
    picture.text(x, y, words, f"{look} {WIDE}" if instead else look, shift)
    if instead:
        picture.text(x, y, instead, f"{look} {NARROW}", shift)


def _row(picture: Picture, row: Row, scale: Scale, top: float, height: float) -> None:
    middle, lines = top + height / 2, wrapped(row.label)
    for number, line in enumerate(lines):
        offset = (number - (len(lines) - 1) / 2) * TEXT_HEIGHT
        picture.text(0, middle + offset + 4, line, f"label end {row.look}", shift=-10)
    lane = middle - ((THICK + BETWEEN) * _lanes(row) - BETWEEN) / 2 - THICK - BETWEEN
    for mark in row.marks:
        start, end, look = scale.place(mark.start), scale.place(mark.end), f"{mark.kind} {mark.look or row.look}"
        if mark.kind == "bar":
            lane += THICK + BETWEEN if mark.start == 0 else 0
            picture.bar(start, end, lane, THICK, look, mark.tooltip)
        elif mark.kind == "range":
            picture.line(start, middle, end, middle, look)
        elif mark.kind == "tick":
            picture.line(start, middle - 6, start, middle + 6, look)
        else:
            picture.dot(start, middle, look, mark.tooltip)
    _text(picture, 1, middle + 4, row.value, row.most, f"figure {row.look}", shift=10)
