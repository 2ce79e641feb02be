"""The charts of the report: rows of marks, points and curves."""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeVar

from enginewright.report.page.picture import LETTER, TEXT_HEIGHT, WIDE, Picture, Scale, from_zero, wrapped

HEIGHT, BELOW = 260, 40  # pixels of the inner area, and of the ticks and the title below it
RIGHT = 24  # pixels to the right of points

# The names of dots stand beside their own dot, over no other dot or name, however wide the picture is.
NARROWEST, WIDEST = 210, 1000  # pixels of the inner area of a picture, on a phone and on a desktop
RADIUS = 6
GAP = 13  # pixels from the middle of a dot to its name
RIM = 1  # pixels of the outline of a hollow dot
NEAR_THE_EDGE = 0.7  # of the width: beyond it, names stand at the left of their dots

ROW, THICK, BETWEEN = 30, 11, 2
LEAST_LEFT, LEAST_RIGHT = 106, 66  # pixels: pictures beside each other begin and end alike
BELOW_ROWS = 34
FEW_TICKS = 3  # have room on a phone; if there are more, every other one is hidden there


Item = TypeVar("Item")


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


def bar(value: float, look: str = "", tooltip: str = "") -> Mark:
    return Mark("bar", 0, value, look, tooltip)


def dot(value: float, look: str = "", tooltip: str = "") -> Mark:
    return Mark("dot", value, value, look, tooltip)


def draw_rows(
    key: str, title: str, rows: Sequence[Row], unit: str, scale: Scale | None = None, beside: float | None = None
) -> Picture:
    """Draw the rows on a scale, or else from zero to the longest. `beside` is a place to compare them with."""
    scale = scale or from_zero(mark.end for row in rows for mark in row.marks)
    heights = [
        max(ROW, TEXT_HEIGHT * len(wrapped(row.label)) + 8, (THICK + BETWEEN) * _lanes(row) + 10) for row in rows
    ]
    left = max(LEAST_LEFT, LETTER * max((len(line) for row in rows for line in wrapped(row.label)), default=0) + 12)
    right = max(LEAST_RIGHT, LETTER * max((len(row.value) for row in rows), default=0) + 14)
    description = "; ".join(f"{row.label} {row.value}" for row in rows) + "."
    picture = Picture(key, title, description, sum(heights), (6, right, BELOW_ROWS, left))
    ticks = scale.ticks
    origin = ticks.index(0) if 0 in ticks else 0  # never hidden
    for number, tick in enumerate(ticks):
        place, hidden = scale.place(tick), f" {WIDE}" if len(ticks) > FEW_TICKS and (number - origin) % 2 else ""
        picture.line(place, 0, place, picture.height, f"grid{hidden}")
        picture.text(place, picture.height + 14, scale.tick_label(tick), f"tick middle{hidden}")
    picture.text(0, picture.height + 30, unit, "tick")
    if beside is not None:
        picture.line(scale.place(beside), 0, scale.place(beside), picture.height, "beside")
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        _row(picture, row, scale, top + height / 2)
        top += height
    return picture


def _lanes(row: Row) -> int:
    return sum(mark.kind == "bar" for mark in row.marks)  # each has a lane


def _row(picture: Picture, row: Row, scale: Scale, middle: float) -> None:
    lines = wrapped(row.label)
    for number, line in enumerate(lines):
        offset = (number - (len(lines) - 1) / 2) * TEXT_HEIGHT
        picture.text(0, middle + offset + 4, line, f"label end {row.look}", shift=-10)
    lane = middle - ((THICK + BETWEEN) * _lanes(row) - BETWEEN) / 2 - THICK - BETWEEN
    for mark in row.marks:
        start, end, look = scale.place(mark.start), scale.place(mark.end), f"{mark.kind} {mark.look or row.look}"
        if mark.kind == "bar":
            lane += THICK + BETWEEN
            picture.bar(start, end, lane, THICK, look, mark.tooltip)
        elif mark.kind == "range":
            picture.line(start, middle, end, middle, look)
        elif mark.kind == "tick":
            picture.line(start, middle - 6, start, middle + 6, look)
        else:
            picture.dot(start, middle, look, mark.tooltip)
    picture.text(1, middle + 4, row.value, f"figure {row.look}", shift=10)


class Box(NamedTuple):
    """Hold what is drawn at or beside a place: from so many pixels across to so many, half its height up and down."""

    x: float  # as a share of the width
    y: float  # in pixels
    start: float
    end: float
    half: float

    def meets(self, other: "Box") -> bool:
        """Tell whether two boxes overlap at any width: places are shares of the width, boxes keep their pixels."""
        between = sorted(((other.x - self.x) * NARROWEST, (other.x - self.x) * WIDEST))
        across = between[0] < self.end - other.start and between[1] > self.start - other.end
        return across and abs(self.y - other.y) < self.half + other.half


def box_of_dot(x: float, y: float) -> Box:
    return Box(x, y, -RADIUS - RIM, RADIUS + RIM, RADIUS + RIM)


def place_labels(dots: Sequence[tuple[float, float, str]], bottom: float, right: float) -> list[Box]:
    """Return a place for the name of each dot, in an area of this height with this many free pixels to its right: at
    either side of its dot, or else a row further down or up, and so on."""
    placed: list[Box] = []
    for x, y, name in dots:
        length = GAP + LETTER * len(name)
        at_right, at_left = (GAP, length), (-length, -GAP)
        fitting = [
            Box(x, y + down, start, end, TEXT_HEIGHT / 2)
            for down in (TEXT_HEIGHT * rows for rows in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6))
            for start, end in ((at_left, at_right) if x > NEAR_THE_EDGE else (at_right, at_left))
            if x * NARROWEST + start >= 0 and (x - 1) * NARROWEST + end <= right
            if down == 0 or 0 <= y + down <= bottom
        ]
        taken = [*placed, *(box_of_dot(*other[:2]) for other in dots if other != (x, y, name))]
        placed.append(next((box for box in fitting if not any(map(box.meets, taken))), fitting[0]))
    return placed


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


def draw_points(key: str, title: str, description: str, points: Sequence[Point], axes: Axes, less: bool) -> Picture:
    """Draw points with their intervals. A staircase joins the points that no other beats in both directions."""
    picture = _with_axes(key, title, description, axes, RIGHT)
    placed = [(axes.x.place(point.x), HEIGHT * (1 - axes.y.place(point.y)), point) for point in points]
    places = [(x, y) for x, y, point in placed if point.look in ("plain", "strong")]
    # The fastest is at the right, and heights count downwards.
    stairs = unbeaten(places, lambda place: (-place[0], -place[1] if less else place[1]))
    for (x1, y1), (x2, y2) in pairwise(stairs):
        picture.line(x1, y1, x2, y1, "stair")
        picture.line(x2, y1, x2, y2, "stair")
    for _, y, point in placed:
        picture.line(axes.x.place(point.low), y, axes.x.place(point.high), y, f"range {point.look}")
    labels = place_labels([(x, y, point.label) for x, y, point in placed], HEIGHT, RIGHT)
    for label, (x, y, point) in zip(labels, placed, strict=True):
        side, end = (-1, " end") if label.start < 0 else (1, "")
        if label.y != y:  # a line ties the label to its dot
            picture.leader(x, y, side * (GAP - 2), label.y - y)
        picture.text(x, label.y + 4, point.label, f"figure {point.look}{end}", side * GAP)
    for x, y, point in sorted(placed, key=lambda each: each[2].look != "hollow"):  # hollow dots cover others
        picture.dot(x, y, f"dot {point.look}", point.tooltip, RADIUS)
    return picture


def unbeaten(items: Iterable[Item], figures: Callable[[Item], tuple[float, float]]) -> list[Item]:
    """Return the items that no other beats in both figures, of which less is better, by the first of them."""
    best: list[Item] = []
    for item in sorted(items, key=figures):
        if not best or figures(item)[1] < figures(best[-1])[1]:
            best.append(item)
    return best


def draw_curves(key: str, title: str, description: str, curves: Sequence[Curve], axes: Axes) -> Picture:
    """Draw curves, each with its name at the height where it ends, or below the name above it."""
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
        ends.append((places[-1][1], curve))
    below = -math.inf
    for height, curve in sorted(ends, key=lambda end: end[0]):
        below = max(height, below + TEXT_HEIGHT)
        picture.text(1, below + 4, curve.label, f"figure {curve.look}", shift=10)
    return picture


def _with_axes(key: str, title: str, description: str, axes: Axes, right: float) -> Picture:
    picture = Picture(key, title, description, HEIGHT, (26, right, BELOW, 46))
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
