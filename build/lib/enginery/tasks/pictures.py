"""Draw answers: boxes onto an image, or a line of text above it."""

import colorsys
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

TURN = 0.381966  # of the colour wheel, from one class to the next: neighbours never look alike
LETTERS = 12  # pixels


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


def with_caption(image: Image.Image, text: str) -> Image.Image:
    """Return a copy below lines of text, which are as many as fit its width demands."""
    font = ImageFont.load_default(LETTERS)
    lines = [line for part in text.split("   ") for line in _broken(part, image.width, font)]
    above = (LETTERS + 3) * len(lines) + 3
    drawn = Image.new("RGB", (image.width, image.height + above), "white")
    drawn.paste(image.convert("RGB"), (0, above))
    ImageDraw.Draw(drawn).multiline_text((1, 1), "\n".join(lines), fill="black", font=font, spacing=2)
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
