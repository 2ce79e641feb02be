"""Draw the findings as static pictures."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from enginewright.measure.records import ENGINE, baseline_title
from enginewright.report import tables
from enginewright.report.evidence import Findings, curve_over_sizes
from enginewright.report.page.charts import GAP, RIGHT, Named, frontier, place_labels
from enginewright.report.verdict import recommend, shippable
from enginewright.report.wording import noisy_as_quoted

COLORS = {
    "fp32": "#64748b", "fp16": "#2563eb", "bf16": "#0d9488", "int8": "#d97706", "fp8": "#9333ea", "int4": "#65a30d",
    "mxfp8": "#db2777", "nvfp4": "#0891b2", "best": "#be123c",
}  # fmt: skip
STYLE = {"font.size": 10, "axes.spines.top": False, "axes.spines.right": False}
LIGHTEST, DARKEST = 0.85, 0.55  # greys of the baselines
STAIRS = "#94a3b8"
CROWDED = 5  # contenders: with more, the numbers on the bars are written upright
POINTS = 72  # in an inch
LINE = 100  # letters fit side by side into a legend


def draw_figures(findings: Findings, failures: Mapping[str, tuple[str, ...]], folder: Path) -> None:
    with plt.style.context(STYLE):
        _save(folder / "latency.png", lambda axes: _bars(axes, findings, "p50", "milliseconds per batch, p50"))
        if findings.precisions[0].benchmark.sizes:
            _save(folder / "sizes.png", lambda axes: _sizes(axes, findings))
        rate = f"{findings.kind} per second, one at a time"
        _save(folder / "throughput.png", lambda axes: _bars(axes, findings, "images_per_second", rate))
        _save(folder / "tradeoff.png", lambda axes: _tradeoff(axes, findings, failures))


def _sizes(axes: Axes, findings: Findings) -> None:
    """Draw a line for each contender over the sizes of an axis, on logarithmic scales."""
    first = findings.precisions[0]
    raced = [(baseline_title(name), "#94a3b8", first, name) for name in findings.baselines]
    raced += [(entry.precision, COLORS[entry.precision], entry, ENGINE) for entry in findings.precisions]
    for title, color, entry, contender in raced:
        curve = curve_over_sizes(entry, contender)
        axes.plot(*zip(*curve, strict=True), "o-", color=color, label=title)
    at = first.benchmark.sizes[0]
    axes.set_xlabel(f"{at.axis}, at batch {at.latencies[0].batch}")
    axes.set_ylabel("milliseconds per batch, p50")
    axes.set_xticks([each.size for each in first.benchmark.sizes])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=CROWDED, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)


def _bars(axes: Axes, findings: Findings, figure: str, label: str) -> None:
    """Draw a group of bars for each batch size: baselines, then precisions, hollow if they ran as another type."""
    first, batches = findings.precisions[0], findings.batches
    greys = np.linspace(LIGHTEST, DARKEST, len(findings.baselines))
    series = [
        (baseline_title(name), str(grey), True, [getattr(first.latency(batch, name), figure) for batch in batches])
        for name, grey in zip(findings.baselines, greys, strict=True)
    ]
    for entry in findings.precisions:
        heights = [getattr(entry.latency(batch), figure) for batch in batches]
        series.append((entry.precision, COLORS[entry.precision], entry.engine.runs_its_precision, heights))
    width = 0.8 / len(series)
    for position, (name, color, filled, values) in enumerate(series):
        places = [group + (position - (len(series) - 1) / 2) * width for group in range(len(batches))]
        face = color if filled else "white"
        drawn = axes.bar(places, values, width * 0.92, label=name, color=face, edgecolor=color)
        axes.bar_label(drawn, fmt=_short, fontsize=6.5, padding=1, rotation=90 if len(series) > CROWDED else 0)
    axes.set_xticks(range(len(batches)), [f"batch {batch}" for batch in batches])
    axes.set_ylabel(label)
    axes.margins(y=0.15 if len(series) > CROWDED else 0.05)
    columns = min(CROWDED, len(series), LINE // max(len(name) for name, *_ in series))
    axes.legend(frameon=False, ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), fontsize=8)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def _tradeoff(axes: Axes, findings: Findings, failures: Mapping[str, tuple[str, ...]]) -> None:
    """Draw error against speed, with the staircase that the page has. A hollow dot is not to be shipped."""
    rows, chosen = tables.tradeoff_rows(findings, failures), recommend(findings)
    sound = [one.precision for one in shippable(findings) if one is chosen or not failures.get(one.precision)]
    filled = rows[rows.precision.isin(sound)]
    stairs = frontier(list(zip(filled.speedup, -filled.relative_error, strict=True)), lower_is_better=True)
    axes.step([speed for speed, _ in stairs], [-lower for _, lower in stairs], "--", where="post", color=STAIRS, lw=1)
    for row in rows.itertuples():
        color = COLORS[str(row.precision)]
        spread = [[row.speedup - row.speedup_low], [row.speedup_high - row.speedup]]
        face = color if row.Index in filled.index else "white"
        axes.errorbar(
            [row.speedup], [row.relative_error], xerr=spread, fmt="o", color=color, mfc=face, capsize=3, markersize=8
        )
    axes.set_yscale("log")
    axes.margins(x=0.2, y=0.2)
    noisy = {entry.precision for entry in findings.precisions if noisy_as_quoted(findings, entry)}
    _name_dots(axes, rows, noisy)
    axes.set_xlabel(f"times as fast as {baseline_title(findings.baselines[0])}, batch {findings.tuned_batch}")
    axes.set_ylabel("relative error of the outputs (lower is better)")
    hollow = "; hollow: ran as another type, or failed" if len(filled) < len(rows) else ""
    metric = findings.precisions[0].validation.metric
    starred = "; *: noisy" if noisy else ""
    title = f"Right and down is better; the label shows {metric}, if it is known{hollow}{starred}"
    axes.set_title(title, fontsize=10, loc="left")
    axes.grid(alpha=0.25)


def _name_dots(axes: Axes, rows: pd.DataFrame, noisy: Collection[str]) -> None:
    """Put the names where the page puts them: a pixel of the page is a point here. An asterisk marks a noisy speed."""
    axes.autoscale_view()
    height = axes.bbox.height * POINTS / axes.figure.dpi
    places = (axes.transData - axes.transAxes).transform(rows[["speedup", "relative_error"]])
    stars = [f"{name}{' *' if name in noisy else ''}" for name in rows.precision]
    names = [star if pd.isna(metric) else f"{star}, {metric}" for star, metric in zip(stars, rows.metric, strict=True)]
    dots = [Named(across, height * (1 - up), name) for (across, up), name in zip(places, names, strict=True)]
    for row, label in zip(rows.itertuples(), place_labels(dots, height, RIGHT), strict=True):
        axes.annotate(
            label.of.name,
            (row.speedup, row.relative_error),
            textcoords="offset points",
            xytext=(-GAP if label.at_left else GAP, -label.moved),
            horizontalalignment="right" if label.at_left else "left",
            verticalalignment="center",
            color=COLORS[str(row.precision)],
        )


def _save(path: Path, draw: Callable[[Axes], None]) -> None:
    figure, axes = plt.subplots(figsize=(9, 4.2), layout="constrained")
    draw(axes)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
