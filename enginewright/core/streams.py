"""Print what files say without letting it control the terminal: names of files and classes may hold anything."""

import re
import sys
from collections.abc import Callable

from enginewright.core.text import printable

OURS = re.compile(r"(\x1b\[\d*m|\x1b\[A|[\r\t])")  # colours, and what bars of progress need


def escape_what_is_printed() -> None:
    """Escape from now on what would control the terminal, in all that this process prints."""
    for stream in (sys.stdout, sys.stderr):
        if stream and "write" not in vars(stream):
            stream.write = _escaping(stream.write)  # type: ignore[method-assign]


def _escaping(write: Callable[[str], int]) -> Callable[[str], int]:
    def escaped(text: str) -> int:
        parts = OURS.split(text)  # every second one is ours
        return write("".join(part if odd % 2 else printable(part) for odd, part in enumerate(parts)))

    return escaped
