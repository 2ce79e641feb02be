"""Places for the names of dots: beside their own dot, over no other dot or name, however wide the picture is."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from enginewright.report.page.svg import LETTER, TEXT_HEIGHT

NARROWEST, WIDEST = 210, 1000  # pixels of the inner area of a picture, on a phone and on a desktop
RADIUS = 6
GAP = 13  # pixels from the middle of a dot to its name
RIM = 1  # pixels of the outline of a hollow dot
NEAR_THE_EDGE = 0.7  # of the width: beyond it, names stand at the left of their dots

Span = tuple[float, float]


class Named(NamedTuple):
    """A dot with a name: its place across as a share of the width, its height in pixels."""

    x: float
    y: float
    name: str


class Label(NamedTuple):
    of: Named
    at_left: bool
    moved: float  # pixels down from the height of its dot

    @property
    def span(self) -> Span:
        """The pixels that the label covers across, from the middle of its dot."""
        ends = GAP + LETTER * len(self.of.name)
        return (-ends, -GAP) if self.at_left else (GAP, ends)


def place_labels(dots: Sequence[Named], bottom: float, right: float) -> list[Label]:
    """Return a place for each name, in an area of this height with this many free pixels to its right."""
    placed: list[Label] = []
    for dot in dots:
        fitting = [label for label in _candidates(dot) if _fits(label, bottom, right)]
        free = (label for label in fitting if _is_free(label, dots, placed))
        placed.append(next(free, fitting[0]))
    return placed


def _candidates(dot: Named) -> Iterator[Label]:
    """Yield possible places, the best first: at either side of the dot, then a row further down or up, and so on."""
    left_first = dot.x > NEAR_THE_EDGE
    for rows in (0, 1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6):
        for at_left in (left_first, not left_first):
            yield Label(dot, at_left, rows * TEXT_HEIGHT)


def _fits(label: Label, bottom: float, right: float) -> bool:
    start, end = label.span
    height = label.of.y + label.moved
    across = label.of.x * NARROWEST + start >= 0 and (label.of.x - 1) * NARROWEST + end <= right
    return across and (not label.moved or 0 <= height <= bottom)


def _is_free(label: Label, dots: Sequence[Named], placed: Sequence[Label]) -> bool:
    others = [dot for dot in dots if dot is not label.of]
    return not any(covers(label, dot) for dot in others) and not any(_overlap_names(label, other) for other in placed)


def covers(label: Label, dot: Named) -> bool:
    reach = RADIUS + RIM
    apart = abs(label.of.y + label.moved - dot.y)
    return apart < TEXT_HEIGHT / 2 + reach and _overlap(label.of.x, label.span, dot.x, (-reach, reach))


def _overlap_names(label: Label, other: Label) -> bool:
    apart = abs(label.of.y + label.moved - other.of.y - other.moved)
    return apart < TEXT_HEIGHT and _overlap(label.of.x, label.span, other.of.x, other.span)


def _overlap(x: float, span: Span, other_x: float, other: Span) -> bool:
    """Tell whether two spans overlap at any width: places are shares of the width, spans keep their pixels."""
    between = sorted(((other_x - x) * NARROWEST, (other_x - x) * WIDEST))
    return between[0] < span[1] - other[0] and between[1] > span[0] - other[1]
