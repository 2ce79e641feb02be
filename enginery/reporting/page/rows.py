"""The picture that most findings need: a row for each thing, its marks on a common scale, its figure at the right."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

from enginery.reporting.page.scales import Scale
from enginery.reporting.page.svg import LETTER, TEXT_HEIGHT, Picture, room_for, wrapped

ROW, THICK, BETWEEN = 30, 11, 2
LEAST_LEFT, LEAST_RIGHT = 106, 84  # so that pictures beside each other begin and end alike
AXIS = 34  # pixels for the ticks and the unit below


class Mark(NamedTuple):
    kind: Literal["bar", "range", "dot", "tick"]
    start: float
    end: float
    look: str = ""
    says: str = ""


class Row(NamedTuple):
    label: str
    marks: tuple[Mark, ...]
    value: str
    look: str = "plain"  # strong is what to look at, faint what to compare with


def bar(value: float, look: str = "", says: str = "") -> Mark:
    return Mark("bar", 0, value, look, says)


def dot(value: float, look: str = "", says: str = "") -> Mark:
    return Mark("dot", value, value, look, says)


def draw_rows(
    key: str, title: str, description: str, rows: Sequence[Row], scale: Scale, unit: str, beside: float | None = None
) -> Markup:
    """`beside` is a place on the scale that all rows are to be seen against."""
    heights = [_height(row) for row in rows]
    left = max(LEAST_LEFT, room_for([row.label for row in rows]))
    right = max(LEAST_RIGHT, max((len(row.value) for row in rows), default=0) * LETTER + 14)
    picture = Picture(key, title, description, sum(heights), (6, right, AXIS, left))
    _axis(picture, scale, unit)
    if beside is not None:
        picture.line(scale.place(beside), 0, scale.place(beside), picture.height, "beside")
    top = 0.0
    for row, height in zip(rows, heights, strict=True):
        _row(picture, row, scale, top, height)
        top += height
    return picture.markup()


def _height(row: Row) -> float:
    return max(ROW, TEXT_HEIGHT * len(wrapped(row.label)) + 8, (THICK + BETWEEN) * _lanes(row) + 10)


def _lanes(row: Row) -> int:
    """Bars from zero lie below each other; one that begins elsewhere goes on where the last ended."""
    return sum(mark.kind == "bar" and mark.start == 0 for mark in row.marks)


def _axis(picture: Picture, scale: Scale, unit: str) -> None:
    for tick in scale.ticks:
        place = scale.place(tick)
        picture.line(place, 0, place, picture.height, "grid")
        picture.text(place, picture.height + 14, scale.said(tick), "tick middle")
    picture.text(0, picture.height + 30, unit, "tick")


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
            picture.bar(start, end, lane, THICK, look, mark.says)
        elif mark.kind == "range":
            picture.line(start, middle, end, middle, look)
        elif mark.kind == "tick":
            picture.line(start, middle - 6, start, middle + 6, look)
        else:
            picture.dot(start, middle, look, mark.says)
    picture.text(1, middle + 4, row.value, f"figure {row.look}", shift=10)
