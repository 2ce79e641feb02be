"""Merge what an owner changed in a file with what a new version changed: by git, three-way."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packaging.version import Version
from ruamel.yaml import YAML

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import ARTIFACTS, LOCK, scratch_folder
from enginewright.core.params.section import PARAMS_FILE
from enginewright.core.text import first_few
from enginewright.core.user_files import folders_above

CONFLICT = re.compile(r"^<{7} mine\n(.*?)^\|{7} base\n(.*?)^={7}\n(.*?)^>{7} new\n", re.MULTILINE | re.DOTALL)
Settled = Callable[[str, str, str], str]  # by what the owner made of some lines, what they were, and the new ones


def merge(mine: str, base: str, new: str, path: Path, settled: Settled | None = None) -> str:
    """Return the text with both changes. Where both changed the same lines, only their owner can tell, or `settled`."""
    with scratch_folder() as folder:
        files = dict(zip(("mine", "base", "new"), (mine, base, new), strict=True))
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        labels = [part for name in files for part in ("-L", name)]
        command = ["git", "merge-file", "-p", "--diff3", *labels, *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not 0 <= done.returncode <= 127:  # the number of conflicts
        raise EnginewrightError(f"{path}: git cannot merge it: {done.stderr.strip()}")
    if settled:
        return CONFLICT.sub(lambda found: settled(*found.groups()), done.stdout)
    if done.returncode:
        lines = [(ours or before).strip().partition("\n")[0] for ours, before, _ in CONFLICT.findall(done.stdout)]
        raise EnginewrightError(
            f"{path} cannot be merged: you and this version changed {first_few([f'`{line}`' for line in lines], 3)}. "
            "Undo your change there, upgrade, and make it again; nothing was changed"
        )
    return done.stdout


# The lines of params.yaml: each with the place of its parameter, its value, and its comment.

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


# Bring params.yaml to a new version: its comments and new parameters come, renamed ones move, set values stay.

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


# Say which stages run again after an upgrade, before any of them runs.

MACHINE_FILES = ("machine", "target", "dialect", "tools", "task")
NO_PLACE = object()  # of a parameter that is not there
# The user's modules may lie above the project, and nothing lies above a copy of it. They come after the libraries.
IN_COPY = """
import json, runpy, sys
sys.path += json.loads(sys.argv.pop(1))
runpy.run_module("stages", run_name="__main__")
"""
Stages = Mapping[str, Mapping[str, Any]]


def runs_again(folder: Path, files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the stages that run again with these files in place of the project's, and those that follow from them as
    far as the results of the first differ. `files` has dvc.yaml, machine/dvc.yaml and params.yaml."""
    with (
        _copy_of(folder, {name: (folder / name).read_text(encoding="utf-8") for name in files}) as before,
        _copy_of(folder, files) as after,
    ):
        old, new = _stages(before), _stages(after)
        was, now = (YAML(typ="safe").load(each / PARAMS_FILE) for each in (before, after))
        changed_paths = _changed_by_machine(after, folder)
    first = [
        name
        for name, stage in new.items()
        if stage != old.get(name)
        or any(_differ(entry, was, now) for entry in stage.get("params", []))
        or any(path in changed_paths for path in stage.get("deps", []))
    ]
    return first, _followers(new, first)


def has_run(folder: Path) -> bool:
    return (folder / LOCK).is_file()


@contextmanager
def _copy_of(folder: Path, files: Mapping[str, str]) -> Iterator[Path]:
    """Yield a folder with links to all that the project has, and these files."""
    with scratch_folder() as copy:
        own = {PurePosixPath(file).parts[0] for file in files}
        for entry in folder.iterdir():
            if entry.name not in own and entry.name not in (".git", ".dvc"):
                (copy / entry.name).symlink_to(entry)
        for file, text in files.items():
            (copy / file).parent.mkdir(exist_ok=True)
            (copy / file).write_text(text, encoding="utf-8")
        yield copy


def _stages(folder: Path) -> Stages:
    """Return the stages as DVC understands them, one for each precision."""
    from dvc.parsing import DataResolver
    from dvc.repo import Repo

    plan = YAML(typ="safe").load(folder / "dvc.yaml")
    resolved: Stages = DataResolver(Repo(str(folder), uninitialized=True), str(folder), plan).resolve()["stages"]
    return resolved


def _changed_by_machine(copy: Path, folder: Path) -> set[str]:
    """Run the stage `machine` beside the project's results, and return which of its files became others: so a new
    version of the code, of a package or of the machine is found by the code that finds it in every run."""
    made = copy / "made"
    (made / "code").mkdir(parents=True)
    data = (part for name in ("models", "weights", "calibration", "plugins") for part in (f"--{name}", f"data/{name}"))
    outs = (part for name in MACHINE_FILES for part in (f"--{name}", f"made/{name}.json"))
    above = json.dumps([str(each) for each in folders_above(folder)[1:]])
    command = [sys.executable, "-c", IN_COPY, above, "machine", *data, *outs, "--code", "made/code"]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    files = (path for path in made.rglob("*.json") if path.is_file())
    return {
        (ARTIFACTS / path.relative_to(made)).as_posix()
        for path in files
        if not _same(path, copy / ARTIFACTS / path.relative_to(made))
    }


def _same(new: Path, old: Path) -> bool:
    return old.is_file() and old.read_bytes() == new.read_bytes()


def _differ(entry: Any, was: Any, now: Any) -> bool:
    """Tell whether a line of a stage's `params` has another value: a place in params.yaml, or a file as a whole."""
    if isinstance(entry, Mapping):
        return bool(was != now)
    return bool(_at(entry, was) != _at(entry, now))


def _at(place: str, params: Any) -> Any:
    for name in place.split("."):
        if not isinstance(params, Mapping) or name not in params:
            return NO_PLACE
        params = params[name]
    return params


def _followers(stages: Stages, first: list[str]) -> list[str]:
    reached = list(first)
    for name in reached:  # which grows meanwhile
        made = [_path(out) for kind in ("outs", "metrics") for out in stages[name].get(kind, [])]
        for other, stage in stages.items():
            if other not in reached and any(_covers(out, dep) for out in made for dep in stage.get("deps", [])):
                reached.append(other)
    return [name for name in stages if name in reached and name not in first]


def _path(out: Any) -> str:
    return str(next(iter(out))) if isinstance(out, Mapping) else str(out)


def _covers(one: str, other: str) -> bool:
    """Tell whether they are the same, or one is a folder that holds the other."""
    return PurePosixPath(one).is_relative_to(other) or PurePosixPath(other).is_relative_to(one)
