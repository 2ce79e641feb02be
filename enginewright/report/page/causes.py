"""Pictures that explain the figures: errors of single samples, calibration, and the graph."""

from collections import Counter
from collections.abc import Sequence

from enginewright.core.text import first_few
from enginewright.report.evidence import Background, Evidence, Findings, Simplified
from enginewright.report.page.charts import Axes, Curve, Mark, Row, bar, dot, draw_curves, draw_histogram, draw_rows
from enginewright.report.page.picture import Figure, Picture, Scale, decades, from_zero, short
from enginewright.report.page.pictures import LEAST_ERROR, Looks

LEAST_MARGIN = -100  # percent: below it the answer is another one in any case
MOST_HISTOGRAMS = 120  # more would make the page heavy


def error_pictures(findings: Findings, looks: Looks) -> list[Figure]:
    """Draw how single samples differ from PyTorch: their errors, and what is left of the lead of its answer."""
    one = findings.kind[:-1]
    pictures = [Figure(f"Relative error of each {one}", _errors(findings, looks))]
    if classifiers := [entry for entry in findings.precisions if entry.validation.spread.margin_kept]:
        pictures.append(Figure("How much of its lead PyTorch's answer keeps", _margins(classifiers, looks)))
    return pictures


def _errors(findings: Findings, looks: Looks) -> Picture:
    curves, figures = [], []
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


def _margins(entries: Sequence[Evidence], looks: Looks) -> Picture:
    rows = []
    for entry in entries:
        spread = entry.validation.spread
        worst, low, median = (100 * spread.margin_kept[spread.shares.index(share)] for share in (0.0, 0.01, 0.5))
        lines = (Mark("range", worst, low, "thin"), Mark("range", low, median), Mark("tick", low, low))
        marks = (*lines, dot(worst, tooltip="the closest call"))
        value = f"{worst:.0f}%" if worst > LEAST_MARGIN else f"under {LEAST_MARGIN}%"
        rows.append(Row(entry.precision, marks, value, looks[entry.precision]))
    least = min(0.0, *(100 * entry.validation.spread.margin_kept[0] for entry in entries))
    scale = Scale(max(LEAST_MARGIN, least), 100)
    title, unit = "How much of its lead PyTorch's answer keeps", "% of PyTorch's lead"
    return draw_rows("margins", title, rows, scale, unit, "The one that kept least: ", beside=0)


def histogram_pictures(background: Background) -> list[Figure]:
    """Draw a histogram for each tensor, under the name of the node that makes it: names of tensors say little. Where
    each has its own method, say which."""
    sketches, calibration = background.histograms.tensors, background.calibration
    pictures = []
    for number, name in enumerate(background.drawn_tensors[:MOST_HISTOGRAMS]):
        maker, method, sketch = background.makers.get(name), calibration.methods.get(name), sketches[name]
        title = (maker.title if maker else f"input {name}") + (f", by {method}" if method else "")
        drawn = draw_histogram(f"histogram-{number}", name, sketch, calibration.amax[name])
        pictures.append(Figure(f"{title}, {sketch.clipped:.3%} clipped", drawn))
    return pictures


def describe_nodes(simplified: Simplified) -> str:
    """Say how many nodes there were and are, and which kinds of them are gone."""
    before, after = Counter(simplified.nodes_before), Counter(simplified.nodes_after)
    if before == after:
        return f"Nothing could be removed: {before.total()} nodes were exported, and all of them stayed."
    changes = [(what, kinds) for what, kinds in (("gone", before - after), ("new", after - before)) if kinds]
    counts = [f"{what}: {first_few([f'{n} {kind}' for kind, n in kinds.most_common()])}" for what, kinds in changes]
    return "; ".join([f"{before.total()} nodes became {after.total()}", *counts]) + "."


def operator_picture(simplified: Simplified) -> Picture:
    """Draw two bars for each type of operator: as exported, and simplified."""
    before, after = Counter(simplified.nodes_before), Counter(simplified.nodes_after)
    rows = []
    for kind in sorted({*before, *after}, key=lambda kind: (-before[kind], kind)):
        exported = bar(before[kind], "faint", f"{before[kind]} exported")
        left = bar(after[kind], "plain", f"{after[kind]} simplified")
        rows.append(Row(kind, (exported, left), f"{before[kind]} → {after[kind]}"))
    scale = from_zero([*before.values(), *after.values()])
    return draw_rows("operators", "Operators before and after simplifying", rows, scale, "nodes")
