"""The usual picture: a row for each thing, with marks on a common scale and the figure at the right."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from enginewright.report.page.scales import Scale
from enginewright.report.page.svg import LETTER, NARROW, TEXT_HEIGHT, WIDE, Picture, wrapped

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
