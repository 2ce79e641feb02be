"""Read standard input, which `-` stands for among images or texts."""

import sys

from enginewright.core.errors import EnginewrightError


def lines_of_standard_input() -> list[str]:
    """Return the lines that are not empty."""
    try:
        content = sys.stdin.read() if sys.stdin else ""  # it may be closed, as in `<&-`
    except UnicodeDecodeError:
        raise EnginewrightError("standard input is no text in UTF-8") from None
    if not (lines := [line for line in content.split("\n") if line.strip()]):
        raise EnginewrightError("standard input, which - stands for, has no lines")
    return lines
