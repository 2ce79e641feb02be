"""What the documents say, in parts: blocks, commands, links."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(ROOT / f"{folder}/README.md" for folder in ("benchmarks", "data", "history")),
    *sorted(path for path in ROOT.glob("docs/**/*.md") if "results" not in path.parts),
]
PROGRAMS = ("make", "dvc", "enginewright", "python", "pip", "git", "bash", "sed")
FENCE = re.compile(
    r"(?ms)^(?:<!-- (?:(?P<slow>run at length)|not run: (?P<why>[^\n]+)) -->\n)?^```(?P<kind>\w*)\n(?P<text>.*?)^```$"
)


class Block(NamedTuple):
    document: Path
    kind: str
    text: str
    at_length: bool
    not_run: str | None

    @property
    def name(self) -> str:
        return f"{self.document.stem}: {self.text.strip().splitlines()[0][:40]}"


class Command(NamedTuple):
    place: str
    words: tuple[str, ...]
    is_mention: bool = False  # in running text, of a command by its name


def blocks(*kinds: str) -> list[Block]:
    return [
        Block(document, found["kind"], found["text"], found["slow"] is not None, found["why"])
        for document in DOCUMENTS
        for found in FENCE.finditer(document.read_text())
        if found["kind"] in kinds
    ]


def lines_of(block: Block) -> list[str]:
    """The commands of a block: of what a terminal showed, those behind a prompt."""
    whole = block.text.replace("\\\n", " ")
    if block.kind == "console":
        return [line[2:] for line in whole.splitlines() if line.startswith("$ ")]
    return [line for line in whole.splitlines() if line.strip() and not line.startswith("#")]


def commands() -> list[Command]:
    """Of all blocks, and those in the running text that are written out."""
    in_blocks = [
        Command(f"{block.name}: {line}", part)
        for block in blocks("sh", "console")
        for line in lines_of(block)
        for part in parts_of(line)
    ]
    return in_blocks + [
        Command(place, part, len(text.split()) == 2) for place, text in in_text() for part in parts_of(text)
    ]


def in_text() -> list[tuple[str, str]]:
    """Commands in running text, each with where it stands."""
    return [
        (f"{document.name}: {text}", text)
        for document in DOCUMENTS
        for text in re.findall(r"`([^`\n]+)`", FENCE.sub("", document.read_text()))
        if text.split()[0] in PROGRAMS and " " in text and "…" not in text
    ]


def parts_of(line: str) -> list[tuple[str, ...]]:
    """The commands that && and pipes join, each without what it is redirected to."""
    found: list[list[str]] = [[]]
    for word in shlex.split(line, comments=True):
        if word in ("&&", "|", ";", "||"):
            found.append([])
        else:
            found[-1].append(word)
    parts = []
    for words in found:
        redirected = next((place for place, word in enumerate(words) if word in (">", "<", "2>")), len(words))
        parts.append(tuple(words[:redirected]))
    return [part for part in parts if part]


def prose(document: Path) -> str:
    return FENCE.sub("", document.read_text())


def anchors(document: Path) -> set[str]:
    """As GitHub makes them of headings."""
    found = re.findall(r"(?m)^#+ (.+)$", prose(document))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def links(document: Path) -> list[str]:
    return [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(document))
        if not target.startswith(("http://", "https://"))
    ]
