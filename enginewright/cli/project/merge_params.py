"""Bring params.yaml to a new version: its comments and new parameters come, renamed ones move, set values stay."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from enginewright.cli.project.merge import merge
from enginewright.cli.project.params_lines import BEGIN, Line, in_pieces, joined, lines_of
from enginewright.core.errors import EnginewrightError
from enginewright.core.text import first_few

# By the version that renamed them; * is any one name. The old ones stand in no loader for longer than one version.
RENAMED: dict[str, dict[str, str]] = {
    "0.2.0": {
        "precisions.*.thresholds.top1_agreement": "precisions.*.thresholds.agreement",
        "precisions.*.thresholds.accuracy_drop": "precisions.*.thresholds.metric_drop",
    },
}


class Merged(NamedTuple):
    text: str
    notes: list[str]  # sentences on what happened to parameters


def merge_params(mine: str, base: str, new: str, since: Version, path: Path) -> Merged:
    """Merge the owner's text, the one that was laid out, and that of this version. `since` is the project's version."""
    renames = _renames_after(since)
    theirs = list(lines_of(new))
    was, _ = _with_new_names(list(lines_of(base)), renames, {})
    ours, moved = _with_new_names(list(lines_of(mine)), renames, _values(lines_of(base)))
    set_elsewhere = {to: value for to, value in moved.values() if value is not None}
    merged = merge(in_pieces(ours), in_pieces(was), in_pieces(theirs), path, _settled)
    columns = {line.name: line.column for line in (*theirs, *ours) if line.comment}
    text = _with_values(joined(merged, columns), set_elsewhere)
    owners, before, after, got = _values(ours) | set_elsewhere, _values(was), _values(theirs), _values(lines_of(text))
    wanted = {name: value for name, value in _wanted(owners, before, after) if value is not None}
    if odd := sorted(name for name in wanted.keys() | got.keys() if wanted.get(name) != got.get(name)):
        raise EnginewrightError(
            f"{path} cannot be merged at {first_few(odd, 3)}, where you and this version changed the same lines: undo "
            "your change there, upgrade, and make it again; nothing was changed"
        )
    notes = [f"renamed in {path.name}: {old} is {to}" for old, (to, _) in moved.items()]
    for name, value in after.items():
        if value and name in got and name not in before.keys() | owners.keys():
            notes.append(f"new in {path.name}: {name}: {value}")
        elif name in before and name in owners and len({before[name], owners[name], value}) == 3:
            notes.append(f"kept in {path.name}: {name}: {owners[name]}, where the default is now {value}")
    return Merged(text, notes)


def _settled(mine: str, base: str, new: str) -> str:
    """Return what both added, such as a comment and a new parameter at the same place. Of what both changed the owner's
    stays, and is named in the notes."""
    twice = {line for line in mine.splitlines() if line.startswith(BEGIN)} & set(new.splitlines())
    return mine if base or twice else new + mine


def _renames_after(since: Version) -> dict[str, str]:
    """Return the renames of later versions than the project's, the earliest first."""
    later = sorted((version for version in RENAMED if Version(version) > since), key=Version)
    return {old: new for version in later for old, new in RENAMED[version].items()}


def _values(lines: Sequence[Line] | Iterator[Line]) -> dict[str, str]:
    return {line.name: line.value.strip() for line in lines if line.place}


def _wanted(
    mine: Mapping[str, str], base: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[tuple[str, str | None]]:
    """Yield each parameter as it must be: the owner's if they changed it or a section around it, else the new one."""
    for name in dict.fromkeys((*mine, *base, *new)):
        around = [name[:at] for at, letter in enumerate(name) if letter == "."]
        owners = any(each in base and mine.get(each) != base[each] for each in around)
        yield name, mine.get(name) if owners or mine.get(name) != base.get(name) else new.get(name)


def _with_new_names(
    lines: Sequence[Line], renames: Mapping[str, str], base: Mapping[str, str]
) -> tuple[list[Line], dict[str, tuple[str, str | None]]]:
    """Return the lines with new names, and by old name the new one. A parameter that goes to another section is left
    out, and its value comes with the new name if the owner set it."""
    kept: list[Line] = []
    moved: dict[str, tuple[str, str | None]] = {}
    for line in lines:
        to = _new_place(line.place, renames)
        if to is None:
            kept.append(line)
            continue
        stays = to[:-1] == line.place[:-1]
        if stays:
            kept.append(replace(line, place=to))
        value = line.value.strip()
        moved[line.name] = ".".join(to), value if not stays and base.get(line.name) != value else None
    return kept, moved


def _new_place(place: tuple[str, ...], renames: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return None if it has no new name. A parameter may have been renamed more than once."""
    found = None
    for old, new in renames.items():
        at, pattern = found or place, old.split(".")
        if len(pattern) == len(at) and all(part in ("*", name) for part, name in zip(pattern, at, strict=True)):
            stars = iter([name for part, name in zip(pattern, at, strict=True) if part == "*"])
            found = tuple(next(stars) if part == "*" else part for part in new.split("."))
    return found


def _with_values(text: str, values: Mapping[str, str]) -> str:
    lines = []
    for line in lines_of(text):
        value = values.get(line.name)
        if value is None:
            lines.append(line.text)
            continue
        written = f"{line.indent}{line.key}: {value}"
        lines.append(f"{written:<{max(line.column - 1, 0)}} {line.comment}" if line.comment else written)
    return "".join(f"{line}\n" for line in lines)
