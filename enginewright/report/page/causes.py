"""Pictures that explain the figures: errors against speed, errors of single images, calibration, the graph."""

import math
from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from enginewright.core.text import figure, first_few
from enginewright.graph.simplify import Simplification
from enginewright.measure.records import Result, baseline_title
from enginewright.report.evidence import Background, Evidence, Findings
from enginewright.report.page.charts import (
    Axes,
    Curve,
    Figure,
    Point,
    Scale,
    around,
    decades,
    draw_curves,
    draw_histogram,
    draw_points,
    from_zero,
    short,
)
from enginewright.report.page.listing import Mark, Row, bar, dot, draw_rows
from enginewright.report.page.pictures import Looks
from enginewright.report.wording import noisy_as_quoted

LEAST_ERROR = 1e-8  # below what float32 resolves
LEAST_MARGIN = -100  # percent: below it the answer is another one in any case
MOST_HISTOGRAMS = 120  # more would make the page heavy


def tradeoff_pictures(findings: Findings, looks: Looks) -> list[Figure]:
    """Draw error against speed, and the metric against speed; if that is not known, the share of same answers."""
    validations = [entry.validation for entry in findings.precisions]
    errors = [max(one.engine_against_pytorch.relative, LEAST_ERROR) for one in validations]
    speeds = from_zero(1.1 * findings.quoted(entry).high for entry in findings.precisions)
    faster = f"times as fast as {baseline_title(findings.baselines[0])}, batch {findings.tuned_batch}"
    closer = Axes(speeds, decades(errors, LEAST_ERROR), faster, "relative error of the outputs")
    texts = [short(error) for error in errors]
    pictures = [Figure("Lower is closer to PyTorch", _against_speed("error", findings, looks, closer, errors, texts))]
    results = [one.main for one in validations if one.main]
    agreed = [one.agreement for one in validations if one.agreement]
    if len(results) == len(validations):
        main = results[0]
        pictures.append(_answers(findings, looks, (speeds, faster), [one.engine for one in results], main))
    elif len(agreed) == len(validations):  # otherwise answers can be neither right nor the same
        same = [one.share for one in agreed]
        pictures.append(_answers(findings, looks, (speeds, faster), same, None))
    return pictures


def _answers(
    findings: Findings, looks: Looks, speed: tuple[Scale, str], values: Sequence[float], of: Result | None
) -> Figure:
    """Draw how good the answers are, by a result's metric, or how many are PyTorch's."""
    name, unit = (of.name, of.unit) if of else ("same answer as PyTorch", "%")
    heights = [100 * value if unit else value for value in values]
    beside = f"{name}, %{f' of {findings.kind}' if of is None else ''}" if unit else name
    axes = Axes(speed[0], around(heights, most=100 if unit else math.inf), speed[1], beside)
    texts = [figure(value, unit) for value in values]
    less = of is not None and not of.higher_is_better
    title = f"{'Lower' if less else 'Higher'} is better: {name}"
    return Figure(title, _against_speed("answers", findings, looks, axes, heights, texts, less))


def _against_speed(
    key: str,
    findings: Findings,
    looks: Looks,
    axes: Axes,
    values: Sequence[float],
    texts: Sequence[str],
    less_is_better: bool = True,
) -> Markup:
    points = []
    for entry, value, text in zip(findings.precisions, values, texts, strict=True):
        ratio = findings.quoted(entry)
        tooltip = f"{entry.precision}: {ratio.median:.2f} times as fast, {axes.beside} {text}"
        interval, look = (ratio.median, ratio.low, ratio.high), looks[entry.precision]
        name = entry.precision + (" *" if noisy_as_quoted(findings, entry) else "")
        points.append(Point(name, *interval, value, look, tooltip))
    description = "; ".join(point.tooltip for point in points)
    title = f"{axes.beside} against speed"
    return draw_points(f"tradeoff-{key}", title, f"{description}.", points, axes, less_is_better)


def error_pictures(findings: Findings, looks: Looks) -> list[Figure]:
    """Draw how single images differ from PyTorch: their errors, and what is left of the lead of its answer."""
    classifiers = [entry for entry in findings.precisions if entry.validation.spread.margin_kept]
    pictures = [
        Figure(
            f"Relative error of each {findings.precisions[0].validation.kind[:-1]}", _errors(findings.precisions, looks)
        )
    ]
    if classifiers:
        pictures.append(Figure("How much of its lead PyTorch's answer keeps", _margins(classifiers, looks)))
    return pictures


def _errors(entries: Sequence[Evidence], looks: Looks) -> Markup:
    curves, figures = [], []
    for entry in entries:
        spread = entry.validation.spread
        errors = [max(error, LEAST_ERROR) for error in spread.relative_error]
        points = zip((100 * share for share in spread.shares), errors, strict=True)
        curves.append(Curve(entry.precision, tuple(points), looks[entry.precision]))
        figures.append(
            f"{entry.precision}: median {short(errors[spread.shares.index(0.5)])}, worst {short(errors[-1])}"
        )
    y = decades((error for curve in curves for _, error in curve.points), LEAST_ERROR)
    kind = entries[0].validation.kind
    axes = Axes(Scale(0, 100), y, f"% of {kind}, the closest to PyTorch first", "relative error")
    return draw_curves("errors", f"Relative error of single {kind}", f"{'; '.join(figures)}.", curves, axes)


def _margins(entries: Sequence[Evidence], looks: Looks) -> Markup:
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
    sketches, amax, methods = background.histograms.tensors, background.calibration.amax, background.calibration.methods
    titles = {name: maker.title for name, maker in background.makers.items()}
    return [
        Figure(
            f"{titles.get(name, f'input {name}')}{_by(methods.get(name))}, {sketches[name].clipped:.3%} clipped",
            draw_histogram(f"histogram-{number}", name, sketches[name], amax[name]),
        )
        for number, name in enumerate(background.drawn_tensors[:MOST_HISTOGRAMS])
    ]


def _by(method: str | None) -> str:
    return f", by {method}" if method else ""


def describe_nodes(simplification: Simplification) -> str:
    """Say how many nodes there were and are, and which kinds of them are gone."""
    before, after = Counter(simplification.nodes_before), Counter(simplification.nodes_after)
    if before == after:
        return f"Nothing could be removed: {before.total()} nodes were exported, and all of them stayed."
    changes = [(what, kinds) for what, kinds in (("gone", before - after), ("new", after - before)) if kinds]
    counts = [f"{what}: {first_few([f'{n} {kind}' for kind, n in kinds.most_common()])}" for what, kinds in changes]
    return "; ".join([f"{before.total()} nodes became {after.total()}", *counts]) + "."


def operator_picture(background: Background) -> Markup:
    """Draw two bars for each type of operator: as exported, and simplified."""
    simplification = background.simplification
    before, after = Counter(simplification.nodes_before), Counter(simplification.nodes_after)
    kinds = sorted({*before, *after}, key=lambda kind: (-before[kind], kind))
    rows = [
        Row(
            kind,
            (
                bar(before[kind], "faint", f"{before[kind]} exported"),
                bar(after[kind], "plain", f"{after[kind]} simplified"),
            ),
            f"{before[kind]} → {after[kind]}",
        )
        for kind in kinds
    ]
    scale = from_zero([*before.values(), *after.values()])
    return draw_rows("operators", "Operators before and after simplifying", rows, scale, "nodes")
