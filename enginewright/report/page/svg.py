"""Pictures as trees of SVG elements, so that no name can become markup."""

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from markupsafe import Markup

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
