"""The lines of params.yaml: each with the place of its parameter, its value, and its comment."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

PARAMETER = re.compile(r"( *)([\w.@-]+):(?=\s|$)(.*)")
BEGIN, MIDDLE, END = "\1begin", "\1mid", "\1end"  # which YAML refuses, so that no comment is taken for one
QUOTED_OR_COMMENT = re.compile(r""" "[^"]*" | '[^']*' | (?<=\s)\#.* """, re.VERBOSE)


@dataclass(frozen=True)
class Line:
    """A line with a parameter or the name of a section; of another line, such as of a comment, only `text` is known."""

    text: str
    place: tuple[str, ...] = ()
    indent: str = ""
    value: str = ""  # with the space before it
    comment: str = ""
    column: int = 0  # of the comment

    @property
    def key(self) -> str:
        return self.place[-1]

    @property
    def name(self) -> str:
        return ".".join(self.place)

    def renamed(self, key: str) -> "Line":
        return replace(self, place=(*self.place[:-1], key))


def lines_of(text: str) -> Iterator[Line]:
    sections: list[tuple[int, str]] = []  # that the line stands in, with their indentation
    for line in text.splitlines():
        found = PARAMETER.match(line)
        if not found:
            yield Line(line)
            continue
        depth, key, rest = len(found[1]), found[2], found[3]
        sections = [*((at, name) for at, name in sections if at < depth), (depth, key)]
        column = next((each.start() for each in QUOTED_OR_COMMENT.finditer(rest) if each[0][0] == "#"), len(rest))
        place, value = tuple(name for _, name in sections), rest[:column].rstrip()
        yield Line(line, place, found[1], value, rest[column:], found.start(3) + column)


def in_pieces(lines: Iterable[Line]) -> str:
    """Write each value and each comment as a line of its own, between lines that tell them apart.

    So git merges them one by one: a new parameter beside a changed one, or a new comment beside a changed value, is no
    conflict."""
    return "".join(f"{piece}\n" for line in lines for piece in _pieces(line))


def _pieces(line: Line) -> list[str]:
    if not line.place:
        return [line.text]
    parameter = f"{line.indent}{line.key}:{line.value}"
    comment = [line.comment] if line.comment else []
    return [f"{BEGIN} {line.name}", parameter, f"{MIDDLE} {line.name}", *comment, f"{END} {line.name}"]


def joined(pieces: str, columns: dict[str, int]) -> str:
    """Put the pieces together. `columns` says where the comment of a parameter stands, if there is room."""
    written: list[str] = []
    inside = ""
    for piece in pieces.splitlines():
        mark, _, name = piece.partition(" ")
        if mark in (BEGIN, END):
            inside = ""
        elif mark == MIDDLE:
            inside = name
        elif inside:  # the comment
            written[-1] = f"{written[-1]:<{columns.get(inside, 0) - 1}} {piece}"
        else:
            written.append(piece)
    return "".join(f"{line}\n" for line in written)
