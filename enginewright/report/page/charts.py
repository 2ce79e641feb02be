"""Pictures with two scales: points, curves and histograms."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from markupsafe import Markup

from enginewright.precision.calibration.histogram import Sketch

# Pictures as trees of SVG elements, so that no name can become markup.

WIDE, NARROW = "wide", "narrow"  # classes: page.css says which of them is seen at which width
TEXT_HEIGHT = 15
LETTER = 7.4  # pixels that a letter takes, about
MOST_LINES = 4  # lines of the longest baseline: PyTorch, how it is launched, its layout, its numbers
MOST_LETTERS = 16  # letters in a line of a label


class Figure(NamedTuple):
    caption: str
    picture: Markup


class Picture:
    """A picture with an inner area for marks.

    Places across are shares of the width, heights are pixels: it fills any width, and its text keeps its size.
    """

    def __init__(
        self, key: str, title: str, details: str, height: float, around: Sequence[float], narrow: float | None = None
    ) -> None:
        self.height = height
        top, right, bottom, left = around  # pixels for labels; `narrow` are those at the right of a narrow picture
        self.root = Element(
            "svg",
            {
                "class": "chart",
                "role": "img",
                "aria-labelledby": f"{key}-title {key}-description",
                "style": f"--wide:{right:g}px;--narrow:{right if narrow is None else narrow:g}px;"
                f"height:{height + top + bottom:g}px;padding:{top:g}px var(--right) {bottom:g}px {left:g}px",
            },
        )
        self._add("title", id=f"{key}-title").text = title
        self._add("desc", id=f"{key}-description").text = details

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str) -> None:
        self._add("line", look, x1=_share(x1), y1=_pixels(y1), x2=_share(x2), y2=_pixels(y2))

    def bar(self, start: float, end: float, y: float, height: float, look: str, tooltip: str = "") -> None:
        bar = self._add("rect", look, tooltip, x=_share(start), y=_pixels(y), height=_pixels(height))
        bar.set("width", _share(max(0.0, end - start)))

    def dot(self, x: float, y: float, look: str, tooltip: str = "", radius: float = 5) -> None:
        self._add("circle", look, tooltip, cx=_share(x), cy=_pixels(y), r=_pixels(radius))

    def text(self, x: float, y: float, words: str, look: str, shift: float = 0) -> None:
        """Write words, shifted by some pixels to stand beside a mark."""
        self._add("text", look, x=_share(x), y=_pixels(y), dx=_pixels(shift)).text = words

    def leader(self, x: float, y: float, across: float, down: float) -> None:
        """Draw a line from a place over so many pixels."""
        frame = self._add("svg", "leader", x=_share(x), y=_pixels(y))
        SubElement(frame, "line", {"x2": _pixels(across), "y2": _pixels(down)})

    def shape(self, path: str, columns: float, look: str) -> None:
        """Draw a path of so many columns, 100 high, stretched over the inner area."""
        frame = self._add("svg", viewBox=f"0 0 {columns:g} 100", preserveAspectRatio="none", width="100%")
        frame.set("height", _pixels(self.height))
        SubElement(frame, "path", {"d": path, "class": look})

    def markup(self) -> Markup:
        return Markup(ElementTree.tostring(self.root, encoding="unicode"))

    def _add(self, tag: str, look: str = "", tooltip: str = "", **attributes: str) -> Element:
        added = SubElement(self.root, tag, attributes | ({"class": look} if look else {}))
        if tooltip:
            SubElement(added, "title").text = tooltip
        return added


def wrapped(label: str) -> list[str]:
    """Return the lines of a label that fit beside a picture. Far too long ones are cut."""
    lines = [""]
    for word in label.replace("+", " +").split():
        if lines[-1] and len(lines[-1]) + len(word) >= MOST_LETTERS:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip() if not word.startswith("+") else lines[-1] + word
    if len(lines) > MOST_LINES:
        lines = [*lines[: MOST_LINES - 1], f"{lines[MOST_LINES - 1]}…"]
    return [line if len(line) <= MOST_LETTERS + 2 else f"{line[:MOST_LETTERS]}…" for line in lines]


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"


def _pixels(value: float) -> str:
    return f"{value:g}"


# Scales: from figures to places in a picture, and to the short labels of an axis.

NICE_STEPS = (1, 2, 2.5, 5, 10)
MOST_TICKS, MOST_POWERS = 4, 6
ROOM = 0.1  # powers of ten at either end: a mark on the very edge would hide its label
TIMES = "\N{MULTIPLICATION SIGN}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """A range of figures, mapped to places from 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        if self.logarithmic:
            low, high, value = (math.log10(number) for number in (self.low, self.high, max(value, self.low)))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low)))

    @property
    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first) / MOST_POWERS))
            return [10.0**power for power in range(first, last + 1, every)]
        first, last = math.ceil(self.low / self._step - 1e-9), math.floor(self.high / self._step + 1e-9)
        return [number * self._step for number in range(first, last + 1)]

    def tick_label(self, tick: float) -> str:
        """Write a tick with as many decimals as tell it from the next one."""
        if self.logarithmic:
            return f"10{_superscript(round(math.log10(tick)))}"
        decimals = next((digits for digits in range(9) if abs(math.remainder(self._step * 10**digits, 1)) < 1e-6), 9)
        return f"{tick:,.{decimals}f}"

    @property
    def _step(self) -> float:
        return _nice((self.high - self.low) / MOST_TICKS)


def from_zero(values: Iterable[float]) -> Scale:
    """Return a scale for lengths, which mislead unless they begin at zero."""
    return Scale(0.0, max(values, default=0.0) or 1.0)


def around(values: Iterable[float], most: float) -> Scale:
    """Return a scale for places that ends on ticks, with room on both sides, but not beyond the most there can be."""
    found = list(values)
    low, high = min(found), max(found)
    room = (high - low) or abs(high) * 0.01 or 1.0
    step = _nice(1.5 * room / MOST_TICKS)
    return Scale(math.floor((low - room / 10) / step) * step, min(most, math.ceil((high + room / 10) / step) * step))


def decades(values: Iterable[float], least: float) -> Scale:
    """Return a scale of whole powers of ten, with room on both sides. Anything below `least` is drawn at `least`."""
    found = [math.log10(max(value, least)) for value in values]
    low, high = math.floor(min(found) - ROOM), math.ceil(max(found) + ROOM)
    return Scale(10.0**low, 10.0**high, logarithmic=True)


def short(value: float) -> str:
    """Write a figure with three digits: more are not known."""
    if value == 0:
        return "0"
    if abs(value) < 1e-3 or abs(value) >= 1e6:
        digits, power = f"{value:.1e}".split("e")
        return f"{digits.removesuffix('.0')}{TIMES}10{_superscript(int(power))}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _superscript(power: int) -> str:
    return str(power).translate(SUPERSCRIPTS)


def _nice(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(nice * power for nice in NICE_STEPS if step <= nice * power * (1 + 1e-9))


# Places for the names of dots: beside their own dot, over no other dot or name, however wide the picture is.

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
