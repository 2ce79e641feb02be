"""`enginewright upgrade`: merge what an owner changed in the files of a project with what a new version changed, and
say which stages run again, before any of them runs."""

import difflib
import json
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from packaging.version import Version
from ruamel.yaml import YAML

from enginewright import __version__
from enginewright.cli import layout
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import ARTIFACTS, LOCK, scratch_folder, write_text
from enginewright.core.installing import OLD_FOLDER, old_name_hint, require_new_enough, version_of_project
from enginewright.core.params.all import Params, all_defaults, flat
from enginewright.core.params.section import PARAMS_FILE, read_yaml
from enginewright.core.text import first_few
from enginewright.core.user_files import folders_above

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
    """Renew the files of the project, and return what changed and what runs again. Any error comes before writing."""
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
    for path in layout.kept_empty(place):
        if not path.parent.exists():  # DVC watches it, and misses what is not there
            path.parent.mkdir(parents=True)
            path.touch()
    for path, lines in layout.lines_of(place).items():
        layout.add_lines(path, lines)
    (place.folder / layout.AS_LAID_OUT / PARAMS_UNTIL_0_3).unlink(missing_ok=True)
    shutil.rmtree(place.folder / OLD_FOLDER, ignore_errors=True)


def _said(upgrade: Upgrade, dry_run: bool) -> str:
    place = upgrade.place
    lines = [f"enginewright {upgrade.since} -> {__version__}, in {place.folder}", ""]
    for path in upgrade.changed:
        name = path.relative_to(place.git).as_posix()
        texts = upgrade.before.get(path, "").splitlines(), upgrade.after[path].splitlines()
        lines += difflib.unified_diff(*texts, f"{name}, now", f"{name}, of {__version__}", "", "", 1, "")
    lines += ["", *upgrade.notes, *_what_runs(place.folder, upgrade.after), ""]
    then = f"Next: look at `git diff`, then {layout.how_to_run(place.folder)}"
    lines.append("nothing was written" if dry_run else then)
    return "\n".join(lines)


def _what_runs(folder: Path, after: Mapping[Path, str]) -> list[str]:
    if not (folder / LOCK).is_file():
        return ["runs again: all, as nothing has run here yet"]
    try:
        first, followers = runs_again(folder, {name: after[folder / name] for name in ("dvc.yaml", "machine/dvc.yaml")})
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or ["it gives no reason"])[-1]
        return [f"what runs again cannot be told, as the first stage fails: {why}"]
    if not first:
        return ["runs again: nothing but the stage machine"]
    then = [f"and, as far as results differ: {', '.join(followers)}"] if followers else []
    return [f"runs again: {', '.join(first)}", *then]


# The user's modules may lie above the project, and nothing lies above a copy of it. They come after the libraries.
IN_COPY = """
import json, runpy, sys
sys.path += json.loads(sys.argv.pop(1))
runpy.run_module("stages", run_name="__main__")
"""
Stages = Mapping[str, Mapping[str, Any]]


def runs_again(folder: Path, files: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the stages that run again with these files in place of the project's, and those that follow from them as
    far as the results of the first differ. `files` has dvc.yaml and machine/dvc.yaml."""
    mine = {name: (folder / name).read_text(encoding="utf-8") for name in files}
    with _copy_of(folder, mine) as before, _copy_of(folder, files) as after:
        old, new, changed = _stages(before), _stages(after), _changed_by_machine(after, folder)
    first = [name for name, stage in new.items() if stage != old.get(name) or changed.intersection(stage["deps"])]
    reached = list(first)
    for name in reached:  # which grows meanwhile
        outs = (*new[name].get("outs", ()), *new[name].get("metrics", ()))
        made = [str(next(iter(out))) if isinstance(out, Mapping) else str(out) for out in outs]
        for other, stage in new.items():
            if other not in reached and any(_covers(out, dep) for out in made for dep in stage["deps"]):
                reached.append(other)
    return first, [name for name in new if name in reached and name not in first]


def _covers(one: str, other: str) -> bool:
    """Tell whether they are the same, or one is a folder that holds the other."""
    return PurePosixPath(one).is_relative_to(other) or PurePosixPath(other).is_relative_to(one)


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
    return {name: {"deps": (), **stage} for name, stage in resolved.items()}


def _changed_by_machine(copy: Path, folder: Path) -> set[str]:
    """Run the stage `machine` beside the project's results, and return which of its files became others: so a new
    version of the code, of a package or of the machine is found by the code that finds it in every run."""
    command = YAML(typ="safe").load(copy / "machine/dvc.yaml")["stages"]["machine"]["cmd"]
    words = shlex.split(command.replace(f"{ARTIFACTS}/", "made/"))[3:]  # without python3 -m stages
    above = json.dumps([str(each) for each in folders_above(folder)[1:]])
    arguments = [sys.executable, "-c", IN_COPY, above, *words]
    subprocess.run(arguments, cwd=copy, check=True, capture_output=True, text=True)
    made = {ARTIFACTS / path.relative_to(copy / "made"): path for path in (copy / "made").rglob("*.json")}
    old = {place: (copy / place).read_bytes() if (copy / place).is_file() else None for place in made}
    return {place.as_posix() for place, path in made.items() if path.read_bytes() != old[place]}
