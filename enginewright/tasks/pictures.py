"""Draw answers: boxes onto an image, or a line of text above it."""

import colorsys
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from enginewright.core.facts import UNSEEN

TURN = 0.381966  # of the colour wheel, from one class to the next: neighbours never look alike
LETTERS = 12  # pixels
TINT = 0.5  # how much of a colour lies over an image


def draw_boxes(image: Image.Image, boxes: Sequence[dict[str, Any]]) -> Image.Image:
    """Return a copy with the boxes, the best on top. Thin lines suit small images."""
    drawn = image.convert("RGB")
    pen, font = ImageDraw.Draw(drawn), ImageFont.load_default(LETTERS)
    width = max(1, round(min(image.size) / 200))
    for found in reversed(boxes):
        left, top, right, bottom = found["box"]
        colour, text = _colour(found["index"]), f"{found['class']} {found['score']:.2f}"
        pen.rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), outline=colour, width=width)
        across = pen.textlength(text, font=font)
        corner = max(0, min(left, image.width - across)), top - LETTERS - 2 if top > LETTERS + 2 else bottom
        pen.rectangle((*corner, corner[0] + across + 1, corner[1] + LETTERS + 2), fill=colour)
        pen.text(corner, text, fill="black", font=font)
    return drawn


def draw_areas(image: Image.Image, classes: NDArray[np.integer[Any]], areas: Sequence[dict[str, Any]]) -> Image.Image:
    """Return a copy whose pixels have the colours of their classes over their own, below the names of `areas`."""
    colours = np.array([_colour(number) for number in range(int(classes.max(initial=0)) + 1)], np.uint8)
    drawn = image.convert("RGB")
    tinted = Image.blend(drawn, Image.fromarray(colours[np.maximum(classes, 0)]), TINT)
    drawn.paste(tinted, mask=Image.fromarray(classes != UNSEEN))
    named = [f"{area['class']} {area['share']:.1%}" for area in areas]
    return with_caption(drawn, "   ".join(named), [_colour(area["index"]) for area in areas])


def with_caption(image: Image.Image, text: str, colours: Sequence[tuple[int, ...]] = ()) -> Image.Image:
    """Return a copy below lines of text, as many as its width demands. A colour may stand before each part."""
    font = ImageFont.load_default(LETTERS)
    room = LETTERS + 3 if colours else 0
    parts = [_broken(part, image.width - room, font) for part in text.split("   ")]
    lines = [line for part in parts for line in part]
    above = (LETTERS + 3) * len(lines) + 3
    drawn = Image.new("RGB", (image.width, image.height + above), "white")
    drawn.paste(image.convert("RGB"), (0, above))
    pen = ImageDraw.Draw(drawn)
    for number, line in enumerate(lines):
        pen.text((1 + room, 1 + number * (LETTERS + 3)), line, fill="black", font=font)
    for number, colour in zip(accumulate(map(len, parts[:-1]), initial=0), colours, strict=False):
        top = 2 + number * (LETTERS + 3)
        pen.rectangle((1, top, LETTERS - 1, top + LETTERS - 2), fill=colour)
    return drawn


def _broken(text: str, width: int, font: Any) -> list[str]:
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and font.getlength(longer) > width - 2:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def _colour(number: int) -> tuple[int, ...]:
    return tuple(round(255 * part) for part in colorsys.hsv_to_rgb(number * TURN % 1, 0.55, 1))
