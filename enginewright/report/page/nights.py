"""Pictures of speed and error from night to night, two for each machine and model."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from enginewright.measure.history import GATE, History
from enginewright.measure.records import Outcome
from enginewright.report.page.charts import Axes, Curve, Dot, draw_curves
from enginewright.report.page.picture import Figure, Picture, Scale, decades, from_zero, short

LEAST_ERROR = 1e-7  # the resolution of float32: an error of zero has no place on a logarithmic axis
MOST_DRAWN = 60  # nights of a machine and model
LOOKS = {Outcome.NOT_COMPARABLE: "hollow", Outcome.REGRESSION: "failed", GATE: "failed"}
OF_NIGHT = {"date", "revision", "precision", "metric", "accuracy", "relative_error", "kept"}


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


def draw_trends(rows: pd.DataFrame) -> dict[str, list[Figure]]:
    """Draw the rows that trend_rows makes. Return two pictures by machine and model; none before the first night."""
    if not len(rows):
        return {}
    settings = rows.groupby("setting", sort=False)
    return {str(setting): _pictures(f"nights-{number}", of) for number, (setting, of) in enumerate(settings)}


def _pictures(key: str, rows: pd.DataFrame) -> list[Figure]:
    dates = sorted(rows["date"].unique())[-MOST_DRAWN:]
    nights = Dates(0, max(1, len(dates) - 1), dates=tuple(f"{date:%Y-%m-%d}" for date in dates))
    latest = rows[rows["date"].isin(dates)].assign(night=lambda found: found["date"].map(dates.index))
    speed = Axes(nights, from_zero(latest["speedup"]), "", "times PyTorch, mean of batch sizes")
    error = Axes(nights, decades(latest["relative_error"], LEAST_ERROR), "", "relative error of the logits")
    return [
        Figure("Higher is faster", _curves(f"{key}-speed", latest, "speedup", speed)),
        Figure("Lower is closer to PyTorch", _curves(f"{key}-error", latest, "relative_error", error)),
    ]


def _curves(key: str, rows: pd.DataFrame, figure: str, axes: Axes) -> Picture:
    """Draw a curve for each precision. The fastest of the last night stands out."""
    last = rows.groupby("precision", sort=False).last()
    curves = []
    for precision, nights in rows.groupby("precision", sort=False):
        points = tuple(zip(nights["night"], nights[figure], strict=True))
        look = "strong" if precision == last["speedup"].idxmax() else "plain"
        dots = [
            Dot(*point, LOOKS.get(verdict, look), f"{axes.x.tick_label(point[0])}: {short(point[1])}, {verdict}")
            for point, verdict in zip(points, nights["verdict"], strict=True)
            if verdict in LOOKS or point is points[-1]
        ]
        curves.append(Curve(str(precision), points, look, tuple(dots)))
    figures = "; ".join(f"{name} {short(row[figure])}, {row['verdict']}" for name, row in last.iterrows())
    return draw_curves(key, f"{axes.beside}, night by night", f"The last night of each: {figures}.", curves, axes)
