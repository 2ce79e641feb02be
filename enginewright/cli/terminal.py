"""Colours, for terminals only."""

import os
from typing import TextIO

CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33}


def painted(text: str, style: str, stream: TextIO) -> str:
    """Return the text in a style if the stream shows styles and the user allows them (https://no-color.org)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not stream.isatty():
        return text
    return f"\033[{CODES[style]}m{text}\033[0m"
