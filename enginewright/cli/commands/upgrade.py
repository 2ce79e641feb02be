"""`enginewright upgrade`: merge what an owner changed in the files of a project with what a new version changed."""

import difflib
import json
import re
import shutil
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from enginewright import __version__
from enginewright.cli import layout
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import scratch_folder, write_text
from enginewright.core.installing import OLD_FOLDER, old_name_hint, require_new_enough, version_of_project
from enginewright.core.params.all import Params, all_defaults, flat
from enginewright.core.params.section import PARAMS_FILE, read_yaml
from enginewright.core.text import first_few

EXAMPLES = """\
examples:
  enginewright upgrade
  enginewright upgrade deploy --dry-run    only say what would change

Renews dvc.yaml and the other files that `enginewright new` laid out, and keeps
your own changes in them. params.yaml is not touched; defaults that are others
now are listed. `git checkout` undoes it. Exits 0, or 1 if the two cannot be
merged; then nothing is written."""


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="here if not given")
    command.add_argument("--dry-run", action="store_true", help="write nothing")


def run(chosen: Namespace) -> int:
    print(upgrade_project(Path(chosen.folder), chosen.dry_run))
    return 0


FOLDERS = (layout.AS_LAID_OUT, OLD_FOLDER)
PARAMS_UNTIL_0_3 = "params.yaml"  # there, with all parameters
CONFLICT = re.compile(r"^<{7} mine\n(.*?)^\|{7} base\n(.*?)^={7}\n.*?^>{7} new\n", re.MULTILINE | re.DOTALL)


class Upgrade(NamedTuple):
    place: layout.Place
    since: Version
    before: dict[Path, str]
    after: dict[Path, str]
    ours: dict[str, layout.LaidOut]  # all but those that are their owner's own
    notes: list[str]

    @property
    def changed(self) -> list[Path]:
        return [path for path, text in self.after.items() if text != self.before.get(path)]


def upgrade_project(folder: Path, dry_run: bool) -> str:
    """Renew the files of the project, and return what changed. Any error comes before writing."""
    upgrade = plan_upgrade(folder.resolve())
    if upgrade.since == Version(__version__) and not upgrade.changed:
        return f"{upgrade.place.folder} is of enginewright {__version__} already"
    said = _said(upgrade, dry_run)  # before writing: it compares with what is there
    if not dry_run:
        _write(upgrade)
    return "\n".join(filter(None, (said, old_name_hint(upgrade.place.folder))))


def plan_upgrade(folder: Path) -> Upgrade:
    place, since = layout.find_place(folder), version_of_project(folder)
    if since is None:
        raise EnginewrightError(
            f"{folder} is no project that `enginewright new` laid out: it has no .enginewright/version"
        )
    require_new_enough(folder)
    for name in (PARAMS_FILE, "dvc.yaml", "machine/dvc.yaml"):
        if not (folder / name).is_file():
            raise EnginewrightError(f"{folder / name} is missing: take it back from git")
    Params.read(folder / PARAMS_FILE)
    files, notes = layout.renewed_files(place), list[str]()
    before = {file.path: file.path.read_text(encoding="utf-8") for file in files.values() if file.path.is_file()}
    after, ours = dict[Path, str](), dict[str, layout.LaidOut]()
    for name, file in files.items():
        mine, kept = before.get(file.path), (folder / each / name for each in FOLDERS)
        base = next((path.read_text(encoding="utf-8") for path in kept if path.is_file()), None)
        if mine is None and base is not None:
            ours[name] = file  # its owner has deleted it
            continue
        if mine in (None, file.text, base):
            after[file.path] = file.text
        elif base is not None:
            after[file.path] = merge(mine, base, file.text, file.path)
        else:
            after[file.path] = mine
            notes.append(f"{file.path.name} stays as it is: {layout.AS_LAID_OUT} does not have it as it was laid out")
        if base is not None or after[file.path] == file.text:  # else it is its owner's own
            ours[name] = file
    return Upgrade(place, since, before, after, ours, [*notes, *_changed_defaults(folder)])


def merge(mine: str, base: str, new: str, path: Path) -> str:
    """Return the text with both changes. Where both changed the same lines, only their owner can tell."""
    with scratch_folder() as folder:
        for name, text in (("mine", mine), ("base", base), ("new", new)):
            (folder / name).write_text(text, encoding="utf-8")
        command = ["git", "merge-file", "-p", "--diff3", "-L", "mine", "-L", "base", "-L", "new", "mine", "base", "new"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:  # the number of conflicts
        lines = [(ours or before).strip().partition("\n")[0] for ours, before in CONFLICT.findall(done.stdout)]
        raise EnginewrightError(
            f"{path} cannot be merged: you and this version changed {first_few([f'`{line}`' for line in lines], 3)}. "
            "Undo your change there, upgrade, and make it again; nothing was changed"
        )
    return done.stdout


def _changed_defaults(folder: Path) -> Iterator[str]:
    """Say which defaults are others than when the project was laid out or upgraded last, as far as it has them."""
    files = (folder / kept / name for kept in FOLDERS for name in (layout.DEFAULTS.name, PARAMS_UNTIL_0_3))
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
    changed = {path: upgrade.after[path] for path in upgrade.changed}
    for path, text in (changed | layout.as_laid_out(place, upgrade.ours)).items():
        write_text(path, text)
    layout.bring_wheel(place)
    for path in layout.kept_empty(place):
        if not path.parent.exists():  # DVC watches it, and misses what is not there
            path.parent.mkdir(parents=True)
            path.touch()
    layout.add_lines(place)
    (place.folder / layout.AS_LAID_OUT / PARAMS_UNTIL_0_3).unlink(missing_ok=True)
    shutil.rmtree(place.folder / OLD_FOLDER, ignore_errors=True)


def _said(upgrade: Upgrade, dry_run: bool) -> str:
    place = upgrade.place
    lines = [f"enginewright {upgrade.since} -> {__version__}, in {place.folder}", ""]
    for path in upgrade.changed:
        name = path.relative_to(place.git).as_posix()
        texts = upgrade.before.get(path, "").splitlines(), upgrade.after[path].splitlines()
        lines += difflib.unified_diff(*texts, f"{name}, now", f"{name}, of {__version__}", "", "", 1, "")
    lines += ["", *upgrade.notes, ""]
    then = f"Next: look at `git diff`, then {layout.how_to_run(place.folder)}"
    lines.append("nothing was written" if dry_run else then)
    return "\n".join(lines)
