"""A picture of the report as a tree of SVG elements, so that no name can become markup, and its scales."""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

WIDE = "wide"  # the class of what a narrow picture has no room for
TEXT_HEIGHT = 15
LETTER = 7.4  # pixels that a letter takes, about
MOST_LINES = 4  # lines of the longest baseline: PyTorch, how it is launched, its layout, its numbers
MOST_LETTERS = 16  # letters in a line of a label
NICE_STEPS = (1, 2, 2.5, 5, 10)
MOST_TICKS, MOST_POWERS = 4, 6
ROOM = 0.1  # powers of ten at either end: a mark on the very edge would hide its label
TIMES = "\N{MULTIPLICATION SIGN}"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
COLUMN, MARGIN = 410, 20  # pixels of a picture in a file, and of what surrounds it


class Picture:
    """A picture with an inner area for marks. Places across are shares of the width, heights are pixels: it fills any
    width, and its text keeps its size."""

    def __init__(self, key: str, title: str, details: str, height: float, around: Sequence[float]) -> None:
        """`around` has the pixels for labels at the top, right, bottom and left."""
        self.height, self.around = height, around
        self.root = Element(
            "svg", {"class": "chart", "role": "img", "aria-labelledby": f"{key}-title {key}-description"}
        )
        self._add("title", id=f"{key}-title").text = title
        self._add("desc", id=f"{key}-description").text = details

    def line(self, x1: float, y1: float, x2: float, y2: float, look: str) -> None:
        self._add("line", look, x1=_share(x1), y1=f"{y1:g}", x2=_share(x2), y2=f"{y2:g}")

    def bar(self, start: float, end: float, y: float, height: float, look: str, tooltip: str = "") -> None:
        width = _share(max(0.0, end - start))
        self._add("rect", look, tooltip, x=_share(start), y=f"{y:g}", height=f"{height:g}", width=width)

    def dot(self, x: float, y: float, look: str, tooltip: str = "", radius: float = 5) -> None:
        self._add("circle", look, tooltip, cx=_share(x), cy=f"{y:g}", r=f"{radius:g}")

    def text(self, x: float, y: float, words: str, look: str, shift: float = 0) -> None:
        """Write words, shifted by some pixels to stand beside a mark."""
        self._add("text", look, x=_share(x), y=f"{y:g}", dx=f"{shift:g}").text = words

    def leader(self, x: float, y: float, across: float, down: float) -> None:
        """Draw a line from a place over so many pixels."""
        frame = self._add("svg", "leader", x=_share(x), y=f"{y:g}")
        SubElement(frame, "line", {"x2": f"{across:g}", "y2": f"{down:g}"})

    def _add(self, tag: str, look: str = "", tooltip: str = "", **attributes: str) -> Element:
        added = SubElement(self.root, tag, attributes | ({"class": look} if look else {}))
        if tooltip:
            SubElement(added, "title").text = tooltip
        return added

    def __html__(self) -> str:
        """Return the picture as a part of a page, with room for the labels."""
        top, right, bottom, left = self.around
        whole_height, padding = self.height + top + bottom, f"{top:g}px {right:g}px {bottom:g}px {left:g}px"
        whole = Element("svg", self.root.attrib | {"style": f"height:{whole_height:g}px;padding:{padding}"})
        whole.extend(self.root)
        return ElementTree.tostring(whole, encoding="unicode")

    __str__ = __html__

    def put_into(self, file: Element, x: float, y: float) -> float:
        """Put the picture into an SVG file, as wide as a column of it, and return its height there."""
        top, right, bottom, left = self.around
        place = {"x": f"{x + left:g}", "y": f"{y + top:g}", "overflow": "visible"}
        size = {"width": f"{COLUMN - left - right:g}", "height": f"{self.height:g}"}
        SubElement(file, "svg", self.root.attrib | place | size).extend(self.root)
        return top + self.height + bottom


class Figure(NamedTuple):
    caption: str
    picture: Picture


def write_figures(path: Path, parts: Mapping[str, Sequence[Figure]]) -> None:
    """Write an SVG file that needs no page, with two pictures side by side. Each part has a heading, or an empty one.
    Its colours are those of a light page."""
    css = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    colors = dict(re.findall(r"(--[\w-]+): light-dark\((#\w+),", css))
    rules = "\n".join(re.findall(r"^\.chart [^{].*", css, re.MULTILINE))
    style = re.sub(r"var\((--[\w-]+)\)", lambda name: colors[name[1]], rules)  # few viewers know variables
    file = Element("svg", xmlns="http://www.w3.org/2000/svg")
    words = f"text {{ font: 600 14px system-ui, sans-serif; fill: {colors['--ink']}; }}"
    SubElement(file, "style").text = f"{words}\n.chart text {{ font-weight: 400; }}\n{style}"
    SubElement(file, "rect", width="100%", height="100%", fill=colors["--paper"])
    y = float(MARGIN)
    for heading, figures in parts.items():
        if heading:
            SubElement(file, "text", x=f"{MARGIN}", y=f"{y + 12:g}").text = heading
            y += 2 * MARGIN
        for number in range(0, len(figures), 2):
            heights = []
            for figure, x in zip(figures[number:], (MARGIN, COLUMN + 2 * MARGIN), strict=False):
                SubElement(file, "text", x=f"{x}", y=f"{y + 10:g}").text = figure.caption
                heights.append(MARGIN + figure.picture.put_into(file, x, y + MARGIN))
            y += max(heights) + MARGIN
    width = 2 * COLUMN + 3 * MARGIN
    file.attrib |= {"width": f"{width}", "height": f"{y:g}", "viewBox": f"0 0 {width} {y:g}"}
    path.write_text(ElementTree.tostring(file, encoding="unicode") + "\n", encoding="utf-8")


def wrapped(label: str) -> list[str]:
    """Return the lines of a label that fit beside a picture. Far too long ones are cut."""
    return textwrap.wrap(label.replace("+", " +"), MOST_LETTERS, max_lines=MOST_LINES, placeholder="…")


def _share(value: float) -> str:
    return f"{100 * value:.2f}%"


@dataclass(frozen=True)
class Scale:
    """A range of figures, mapped to places from 0 to 1."""

    low: float
    high: float
    logarithmic: bool = False

    def place(self, value: float) -> float:
        low, high = self.low, self.high
        if self.logarithmic:
            low, high, value = (math.log10(number) for number in (low, high, max(value, low)))
        return min(1.0, max(0.0, (value - low) / (high - low)))

    @property
    def ticks(self) -> list[float]:
        if self.logarithmic:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            every = max(1, math.ceil((last - first) / MOST_POWERS))
            return [10.0**power for power in range(first, last + 1, every)]
        step = _nice((self.high - self.low) / MOST_TICKS)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def tick_label(self, tick: float) -> str:
        return f"10{_superscript(round(math.log10(tick)))}" if self.logarithmic else f"{tick:,.9g}"


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
