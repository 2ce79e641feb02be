"""`enginewright upgrade`."""

import difflib
import json
import shutil
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from enginewright import __version__
from enginewright.cli.commands.new import add_lines, find_place
from enginewright.cli.project.layout import (
    AS_LAID_OUT,
    DEFAULTS,
    MACHINE_PLAN,
    PLAN,
    LaidOut,
    Place,
    as_laid_out,
    how_to_run,
    kept_empty,
    lines_of,
    renewed_files,
)
from enginewright.cli.project.merge import has_run, merge, runs_again
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file
from enginewright.core.installing import OLD_FOLDER, old_name_hint
from enginewright.core.params.all import Params, all_defaults, flat
from enginewright.core.params.section import PARAMS_FILE, read_yaml
from enginewright.core.version import require_new_enough, version_of_project

EXAMPLES = """\
examples:
  enginewright upgrade
  enginewright upgrade deploy --dry-run    only say what would change

With a newer version installed: dvc.yaml and the other files that
`enginewright new` laid out are renewed, and your own changes in them stay.
params.yaml is not touched: what it leaves out has its default, and defaults
that are others now are listed. It says which stages will run again.
`git checkout` undoes it. Exits 0, or 1 if your changes and those of the new
version cannot be merged; then nothing is written."""


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="here if not given")
    command.add_argument("--dry-run", action="store_true", help="write nothing")


def run(chosen: Namespace) -> int:
    print(upgrade_project(Path(chosen.folder), chosen.dry_run))
    return 0


FOLDERS = (AS_LAID_OUT, OLD_FOLDER)
# Versions before 0.2 kept these names within .enginewright, where DVC took them for plans.
NAMES_IN_0_1 = {PLAN: "dvc.yaml", MACHINE_PLAN: "machine/dvc.yaml"}
PARAMS_UNTIL_0_3 = "params.yaml"  # there, with all parameters


class Upgrade(NamedTuple):
    place: Place
    since: Version
    before: dict[Path, str]
    after: dict[Path, str]
    ours: dict[str, LaidOut]  # all but those that are their owner's own
    notes: list[str]

    @property
    def changed(self) -> list[Path]:
        return [path for path, text in self.after.items() if text != self.before.get(path)]


def upgrade_project(folder: Path, dry_run: bool) -> str:
    """Renew the files of the project, and return what changed and what runs again. Any error comes before writing."""
    upgrade = plan_upgrade(folder.resolve())
    if upgrade.since == Version(__version__) and not upgrade.changed:
        return f"{upgrade.place.folder} is of enginewright {__version__} already"
    said = _said(upgrade, dry_run)  # before writing: it compares with what is there
    if not dry_run:
        _write(upgrade)
    if hint := old_name_hint(upgrade.place.folder):
        said += f"\n{hint}"
    return said


def plan_upgrade(folder: Path) -> Upgrade:
    place = find_place(folder)
    since = version_of_project(folder)
    if since is None:
        raise EnginewrightError(
            f"{folder} is no project that `enginewright new` laid out: it has no .enginewright/version"
        )
    require_new_enough(folder)
    files, notes = renewed_files(place), list[str]()
    before = {file.path: file.path.read_text(encoding="utf-8") for file in files.values() if file.path.is_file()}
    after, ours = dict[Path, str](), dict[str, LaidOut]()
    for name, file in files.items():
        mine, base = before.get(file.path), _base(folder, name)
        if mine is None and name in NAMES_IN_0_1:
            raise EnginewrightError(f"{file.path} is missing: take it back from git")
        if mine is None and base is not None:
            ours[name] = file  # its owner has deleted it
            continue
        if mine in (None, file.text, base):
            after[file.path] = file.text
        elif base is not None:
            after[file.path] = merge(mine, base, file.text, file.path)
        else:
            after[file.path] = mine
            notes.append(f"{file.path.name} stays as it is: {AS_LAID_OUT} does not have it as it was laid out")
        if base is not None or after[file.path] == file.text:  # else it is its owner's own
            ours[name] = file
    params = folder / PARAMS_FILE
    if not params.is_file():
        raise EnginewrightError(f"{params} is missing: take it back from git")
    Params.read(params)
    return Upgrade(place, since, before, after, ours, [*notes, *_changed_defaults(folder)])


def _base(folder: Path, name: str) -> str | None:
    """Return a file as it was laid out."""
    names = (name, NAMES_IN_0_1.get(name, name))
    candidates = [folder / kept / each for kept in FOLDERS for each in names]
    return next((path.read_text(encoding="utf-8") for path in candidates if path.is_file()), None)


def _changed_defaults(folder: Path) -> Iterator[str]:
    """Say which defaults are others than when the project was laid out or upgraded last, as far as it has them."""
    files = (folder / kept / name for kept in FOLDERS for name in (DEFAULTS.name, PARAMS_UNTIL_0_3))
    kept = next((file for file in files if file.is_file()), None)
    if kept is None:
        return
    was, given = dict(flat(read_yaml(kept))), dict(flat(read_yaml(folder / PARAMS_FILE)))
    for place, value in flat(all_defaults()):
        if (old := was.get(place, value)) != value:
            yours = f"; yours is {json.dumps(given[place])}" if place in given else ""
            yield f"another default: {place} is {json.dumps(value)}, and was {json.dumps(old)}{yours}"


def _write(upgrade: Upgrade) -> None:
    """Write the version last: an upgrade that was cut off begins anew, and finds its own changes made."""
    place = upgrade.place
    kept = as_laid_out(place, upgrade.ours)
    for path, text in {**{path: upgrade.after[path] for path in upgrade.changed}, **kept}.items():
        with new_file(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    for path in kept_empty(place):
        if not path.parent.exists():  # DVC watches it, and misses what is not there
            path.parent.mkdir(parents=True)
            path.touch()
    for path, lines in lines_of(place).items():
        add_lines(path, lines)
    for name in (*NAMES_IN_0_1.values(), PARAMS_UNTIL_0_3):
        (place.folder / AS_LAID_OUT / name).unlink(missing_ok=True)
    if (empty := place.folder / AS_LAID_OUT / "machine").is_dir():
        empty.rmdir()
    if (old := place.folder / OLD_FOLDER).is_dir():
        shutil.rmtree(old)


def _said(upgrade: Upgrade, dry_run: bool) -> str:
    place = upgrade.place
    lines = [f"enginewright {upgrade.since} -> {__version__}, in {place.folder}", ""]
    for path in upgrade.changed:
        name = path.relative_to(place.git).as_posix()
        texts = upgrade.before.get(path, "").splitlines(), upgrade.after[path].splitlines()
        lines += difflib.unified_diff(*texts, f"{name}, now", f"{name}, of {__version__}", "", "", 1, "")
    lines += ["", *upgrade.notes, *_what_runs(place.folder, upgrade.after), ""]
    lines.append("nothing was written" if dry_run else f"Next: look at `git diff`, then {how_to_run(place.folder)}")
    return "\n".join(lines)


def _what_runs(folder: Path, after: Mapping[Path, str]) -> list[str]:
    if not has_run(folder):
        return ["runs again: all, as nothing has run here yet"]
    plans = {name: after[folder / name] for name in ("dvc.yaml", "machine/dvc.yaml")}
    try:
        first, followers = runs_again(folder, plans)
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        return [f"what runs again cannot be told, as the first stage fails: {why}"]
    if not first:
        return ["runs again: nothing but the stage machine"]
    then = [f"and, as far as results differ: {', '.join(followers)}"] if followers else []
    return [f"runs again: {', '.join(first)}", *then]
