"""Pictures with two scales: points, curves and histograms."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from markupsafe import Markup

from enginewright.quantization.calibration.sketch import Sketch
from enginewright.report.page.labels import GAP, RADIUS, Named, place_labels
from enginewright.report.page.scales import Scale, short
from enginewright.report.page.svg import LETTER, TEXT_HEIGHT, Picture

HEIGHT, AXIS = 260, 40
RIGHT = 24  # pixels to the right of points
NEAR = 0.3  # labels this share of the width apart can overlap
HISTOGRAM_HEIGHT = 110


class Point(NamedTuple):
    label: str
    x: float
    low: float
    high: float
    y: float
    look: str
    tooltip: str


class Dot(NamedTuple):
    x: float
    y: float
    look: str
    tooltip: str


class Curve(NamedTuple):
    label: str
    points: tuple[tuple[float, float], ...]
    look: str
    dots: tuple[Dot, ...] = ()  # on the points to point out


class Axes(NamedTuple):
    x: Scale
    y: Scale
    below: str  # the titles of the axes
    beside: str


def draw_points(
    key: str, title: str, description: str, points: Sequence[Point], axes: Axes, less_is_better: bool
) -> Markup:
    """Draw points with their intervals. A staircase joins the points that no other beats in both directions."""
    picture = _with_axes(key, title, description, axes, RIGHT)
    placed = [(axes.x.place(point.x), HEIGHT * (1 - axes.y.place(point.y)), point) for point in points]
    stairs = frontier([(x, y) for x, y, point in placed if point.look in ("plain", "strong")], less_is_better)
    for (x1, y1), (x2, y2) in pairwise(stairs):
        picture.line(x1, y1, x2, y1, "stair")
        picture.line(x2, y1, x2, y2, "stair")
    for _, y, point in placed:
        picture.line(axes.x.place(point.low), y, axes.x.place(point.high), y, f"range {point.look}")
    labels = place_labels([Named(x, y, point.label) for x, y, point in placed], HEIGHT, RIGHT)
    for label, (_, _, point) in zip(labels, placed, strict=True):
        x, y, name = label.of
        side = -1 if label.at_left else 1
        if label.moved:  # a line ties the label to its dot
            picture.leader(x, y, side * (GAP - 2), label.moved)
        look = f"figure {point.look}{' end' if label.at_left else ''}"
        picture.text(x, y + label.moved + 4, name, look, side * GAP)
    for x, y, point in sorted(placed, key=lambda each: each[2].look != "hollow"):  # hollow dots cover others
        picture.dot(x, y, f"dot {point.look}", point.tooltip, RADIUS)
    return picture.markup()


def frontier(places: Sequence[tuple[float, float]], lower_is_better: bool) -> list[tuple[float, float]]:
    """Return the points that are better than every faster one, from the fastest on. Heights count downwards."""
    best: list[tuple[float, float]] = []
    for x, height in sorted(places, key=lambda place: -place[0]):
        if not best or (height > best[-1][1] if lower_is_better else height < best[-1][1]):
            best.append((x, height))
    return best


def draw_curves(key: str, title: str, description: str, curves: Sequence[Curve], axes: Axes) -> Markup:
    """Draw curves, each with its name where it ends."""
    right = max(len(curve.label) for curve in curves) * LETTER + 16
    picture = _with_axes(key, title, description, axes, right)
    ends = []
    for curve in curves:
        places = [(axes.x.place(x), HEIGHT * (1 - axes.y.place(y))) for x, y in curve.points]
        for (x1, y1), (x2, y2) in pairwise(places):
            picture.line(x1, y1, x2, y2, f"curve {curve.look}")
        for dot in curve.dots:
            place = axes.x.place(dot.x), HEIGHT * (1 - axes.y.place(dot.y))
            picture.dot(*place, f"dot {dot.look}", dot.tooltip, radius=4)
        ends.append(places[-1])
    for curve, height in zip(curves, apart(ends), strict=True):
        picture.text(1, height + 4, curve.label, f"figure {curve.look}", shift=10)
    return picture.markup()


def draw_histogram(key: str, name: str, sketch: Sketch, threshold: float) -> Markup:
    """Draw counts on a logarithmic scale, because most magnitudes are small. What is clipped stands out."""
    columns, end = len(sketch.counts), len(sketch.counts) * sketch.width
    highest = math.log1p(max(sketch.counts)) or 1
    heights = [100 * math.log1p(count) / highest for count in sketch.counts]
    description = (
        f"Magnitudes from 0 to {short(sketch.largest)}, counted on a logarithmic scale. The threshold is "
        f"{short(threshold)}; {sketch.clipped:.3%} lie beyond it."
    )
    picture = Picture(key, f"Histogram of {name}", description, HISTOGRAM_HEIGHT, (18, 8, 20, 8))
    kept = min(columns, max(1, round(threshold / sketch.width))) if sketch.width and sketch.clipped else columns
    picture.shape(_outline(heights[:kept], 0), columns, "kept")
    if kept < columns:
        picture.shape(_outline(heights[kept:], kept), columns, "clipped")
    place = min(1.0, threshold / end) if end else 1.0
    picture.line(0, HISTOGRAM_HEIGHT, 1, HISTOGRAM_HEIGHT, "base")
    picture.line(place, -4, place, HISTOGRAM_HEIGHT, "threshold")
    side, shift = ("figure strong end", -5) if place > 0.5 else ("figure strong", 5)
    picture.text(place, 6, f"±{short(threshold)}", side, shift)
    picture.text(0, HISTOGRAM_HEIGHT + 15, "0", "tick")
    picture.text(1, HISTOGRAM_HEIGHT + 15, short(end), "tick end")
    return picture.markup()


def apart(places: Sequence[tuple[float, float]]) -> list[float]:
    """Return the heights of labels at these places. A label that would overlap another one moves down."""
    heights = [0.0] * len(places)
    done: list[tuple[float, float]] = []
    for number in sorted(range(len(places)), key=lambda index: places[index][1]):
        x, height = places[number]
        for other, taken in sorted(done, key=lambda pair: pair[1]):
            if abs(x - other) < NEAR and abs(height - taken) < TEXT_HEIGHT:
                height = taken + TEXT_HEIGHT
        heights[number] = height
        done.append((x, height))
    return heights


def _with_axes(key: str, title: str, description: str, axes: Axes, right: float) -> Picture:
    picture = Picture(key, title, description, HEIGHT, (26, right, AXIS, 46))
    for tick in axes.x.ticks:
        place = axes.x.place(tick)
        picture.line(place, 0, place, HEIGHT, "grid")
        picture.text(place, HEIGHT + 16, axes.x.tick_label(tick), "tick middle")
    for tick in axes.y.ticks:
        height = HEIGHT * (1 - axes.y.place(tick))
        picture.line(0, height, 1, height, "grid")
        picture.text(0, height + 4, axes.y.tick_label(tick), "tick end", shift=-8)
    picture.text(0, -12, axes.beside, "tick", shift=-40)
    picture.text(0, HEIGHT + 34, axes.below, "tick")
    return picture


def _outline(heights: Sequence[float], start: int) -> str:
    steps = "".join(f"V{100 - height:.1f}h1" for height in heights)
    return f"M{start} 100{steps}V100z"
