"""Pictures and rows of speed and error from night to night, for each machine and model."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from enginewright.measure.changes import Outcome
from enginewright.measure.history import GATE, History
from enginewright.report.figures import COLORS, STYLE

LEAST_ERROR = 1e-7  # the resolution of float32: an error of zero has no place on a logarithmic axis
MOST_DATES = 5
NIGHTS_APART = 60  # with more, the marks of usual nights shrink, so that they do not hide the others
TREND = "trend.png"
OF_NIGHT = {"date", "revision", "precision", "metric", "accuracy", "relative_error", "kept"}


def trend_rows(histories: Sequence[History]) -> pd.DataFrame:
    """Return a row for each night and precision, from which the pictures are drawn."""
    return pd.DataFrame(
        {
            "setting": history.setting.title,
            **night.model_dump(include=OF_NIGHT),
            "speedup": night.speed(),
            "speedup_low": night.speed("low"),
            "speedup_high": night.speed("high"),
            "engine_mb": night.engine_bytes / 1e6,
            "verdict": night.verdict,
        }
        for history in histories
        for night in sorted(history.nights(), key=lambda night: night.date)
    )


def trend_section(histories: Sequence[History]) -> str:
    """Return the last section of summary.md, or nothing before the first night."""
    if not histories:
        return ""
    marks = (
        "A hollow mark: the machine was slower than it can be. A cross: a confirmed regression, or a broken threshold."
    )
    return f"\n## Over the nights\n\n{marks}\n\n![Speed and error over the nights](figures/{TREND})\n"


def draw_trend(histories: Sequence[History], path: Path) -> None:
    """Draw speed and error side by side, in a row for each machine and model, even if there is only one night."""
    rows = trend_rows(histories)
    settings = list(dict.fromkeys(rows["setting"]))
    with plt.style.context(STYLE):
        size = (9, 3.2 * len(settings))
        figure, grid = plt.subplots(len(settings), 2, figsize=size, layout="constrained", squeeze=False)
        for (speed, error), setting in zip(grid, settings, strict=True):
            _draw_setting(speed, error, rows[rows["setting"] == setting])
            speed.set_title(setting, fontsize=10, loc="left")
        figure.savefig(path, dpi=130, metadata={"Software": None})
        plt.close(figure)


def _draw_setting(speed: Axes, error: Axes, rows: pd.DataFrame) -> None:
    dates = sorted(rows["date"].unique())
    places = {date: place for place, date in enumerate(dates)}
    for axes, figure, label in (
        (speed, "speedup", "times PyTorch, mean of batch sizes"),
        (error, "relative_error", "relative error"),
    ):
        for precision, nights in rows.groupby("precision", sort=False):
            values = nights[figure].clip(lower=LEAST_ERROR)
            _line(axes, nights["date"].map(places), values, nights["verdict"], str(precision))
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_formatter((lambda value, _: f"{value:g}") if axes is speed else (lambda value, _: ""))
        axes.tick_params(which="both", labelsize=7)
        shown = sorted({round(place) for place in np.linspace(0, len(dates) - 1, MOST_DATES)})
        axes.set_xticks(shown, [f"{dates[place]:%Y-%m-%d}" for place in shown])
        axes.set_ylabel(label, fontsize=8)
        axes.grid(alpha=0.25)
    speed.legend(frameon=False, fontsize=8, ncols=len(COLORS), loc="upper left", bbox_to_anchor=(0, -0.1))


def _line(axes: Axes, places: pd.Series, values: pd.Series, verdicts: pd.Series, precision: str) -> None:
    """Draw a hollow mark where a night could not be compared, a cross where it was worse or broke a threshold."""
    color = COLORS[precision]
    axes.plot(places, values, color=color, linewidth=1.2, label=precision)
    slow, red = verdicts == Outcome.NOT_COMPARABLE, verdicts.isin([Outcome.REGRESSION, GATE])
    usual = min(5, 5 * NIGHTS_APART / len(places))
    for which, mark, face, size in ((~slow & ~red, "o", color, usual), (slow, "o", "white", 5), (red, "X", color, 9)):
        axes.plot(places[which], values[which], mark, color=color, markerfacecolor=face, markersize=size)
