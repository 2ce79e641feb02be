"""Lay out a project in the user's own repository."""

import difflib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from ruamel.yaml import YAML

from enginewright.cli.project.choices import Choices, Taken, take
from enginewright.cli.project.layout import TAKEN_NAMES, Place, files_of, has_target, how_to_run, lines_of
from enginewright.cli.project.preparation import Ask, told
from enginewright.cli.recipes import edit_params, overlay
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file, new_folder
from enginewright.core.text import first_few, last_line
from enginewright.core.version import require_new_enough, upgrade_hint

NAME = re.compile(r"[A-Za-z0-9][\w-]*")
OURS = ("machine", "stages")  # folders of the pipeline: packages of these names would stand in for its own


def make_project(folder: Path, choices: Choices, name: str | None = None, ask: Ask | None = None) -> str:
    """Write what is not there yet, and return what was done. What is there is never overwritten. `ask` puts a question
    to the user about what cannot be told otherwise."""
    place = place_of_one(folder.resolve(), name) if name else find_place(folder.resolve())
    require_new_enough(place.folder)
    if hint := upgrade_hint(place.folder):
        raise EnginewrightError(hint)
    files = files_of(place)
    _require_free(place.folder, files)
    params, home = place.folder / "params.yaml", None if (place.folder / "data").exists() else place.beside
    taken = take(choices, place.folder, home, None if params.exists() else ask)
    place.folder.mkdir(parents=True, exist_ok=True)
    if not (place.dvc / ".dvc").is_dir():
        _init_dvc(place)
    if place.beside and not (place.folder / "data").exists():
        (place.folder / "data").symlink_to("../data")  # with the same paths, DVC takes what another model has made
    new = [path for path in files if not path.exists()]
    for path in new:
        with new_file(path) as temporary:
            temporary.write_text(files[path], encoding="utf-8")
    for path, lines in lines_of(place).items():
        add_lines(path, lines)
    if params in new:
        edit_params(lambda content: overlay(content, taken.params), "enginewright new", params)
    copied = [place.folder / target for target in taken.copies if not (place.folder / target).exists()]
    _copy(place.folder, taken)
    return _said(place, files, new, copied, told(taken.params, taken.origins, params) if params in new else [])


def place_of_one(beside: Path, name: str) -> Place:
    """Return where one of several models is: in a folder that shares the user's files and the DVC repository."""
    if not NAME.fullmatch(name) or name in TAKEN_NAMES:
        raise EnginewrightError(
            f"--name {name}: take letters, digits, - and _, and none of {', '.join(TAKEN_NAMES)}, which are in use"
        )
    return find_place(beside)._replace(folder=beside / name, beside=beside)


def find_place(folder: Path) -> Place:
    """Find the repositories that the folder is in. A folder without one of DVC's becomes one itself."""
    parents = [folder, *folder.parents]
    git = next((each for each in parents if (each / ".git").exists()), None)
    if git is None:
        raise EnginewrightError(
            f"{folder} is in no git repository, where the parameters of each run are kept: `git init` first"
        )
    within = parents[: parents.index(git) + 1]
    return Place(folder, git, next((each for each in within if (each / ".dvc").is_dir()), folder))


def _require_free(folder: Path, files: Mapping[Path, str]) -> None:
    """Refuse a folder whose pipeline or packages would be mixed with ours."""
    elsewhere = f"take a folder of its own, such as `enginewright new {folder.name}/enginewright`"
    plan = folder / "dvc.yaml"
    if plan.exists() and plan.read_text(encoding="utf-8") != files[plan]:
        theirs, ours = (_stages(text, plan) for text in (plan.read_text(encoding="utf-8"), files[plan]))
        if not ours <= theirs:  # else it is a project of ours, perhaps of another version
            both = first_few(sorted(theirs & ours), 3)
            named = f", whose stages {both} are called as ours" if both else ""
            raise EnginewrightError(f"{plan} is another pipeline{named}: {elsewhere}")
    for name in OURS:
        if any((folder / f"{name}{ending}").exists() for ending in (".py", "/__init__.py")):
            raise EnginewrightError(f"{folder / name} is a package, and the pipeline has one of this name: {elsewhere}")


def _stages(text: str, path: Path) -> set[str]:
    plan = YAML(typ="safe").load(text)
    if not isinstance(plan, Mapping):
        raise EnginewrightError(f"{path} is no pipeline of DVC")
    return set(plan.get("stages") or {})


def _init_dvc(place: Place) -> None:
    options = [] if place.dvc == place.git else ["--subdir"]
    for command in (["init", "--quiet", *options], ["config", "core.analytics", "false"]):
        done = subprocess.run([sys.executable, "-m", "dvc", *command], cwd=place.dvc, capture_output=True, text=True)
        if done.returncode:
            raise EnginewrightError(f"`dvc {' '.join(command)}` failed: {last_line(done.stderr)}")


def add_lines(path: Path, lines: str) -> None:
    there = path.read_text(encoding="utf-8") if path.exists() else ""
    missing = [line for line in lines.splitlines() if line not in there.splitlines()]
    if missing:
        with new_file(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in [*there.splitlines(), *missing]), encoding="utf-8")


def _copy(folder: Path, taken: Taken) -> None:
    for target, source in taken.copies.items():
        place = folder / target
        if place.exists():
            continue
        if source.is_dir():
            with new_folder(place) as unfinished:
                shutil.copytree(source, unfinished, dirs_exist_ok=True)
        else:
            with new_file(place) as temporary:
                shutil.copyfile(source, temporary)


def _said(place: Place, files: Mapping[Path, str], new: list[Path], copied: list[Path], of_params: list[str]) -> str:
    """Return what was made, how what was there already differs, what was set in params.yaml, and what comes next."""
    made = [path.relative_to(place.git).as_posix() for path in [*new, *copied] if ".enginewright" not in path.parts]
    lines = [f"made {path}" for path in made if not path.endswith(".gitkeep")]
    for path, text in files.items():
        if path not in new and path.read_text(encoding="utf-8") != text and ".enginewright" not in path.parts:
            name = path.relative_to(place.git).as_posix()
            lines.append(f"left {name} as it is; the one of this version differs:")
            lines += difflib.unified_diff(
                path.read_text(encoding="utf-8").splitlines(), text.splitlines(), name, "new", "", "", 1, ""
            )
    tracked = "".join(f"dvc add {os.path.relpath(path.resolve(), place.folder)}; " for path in copied)
    lines += [*of_params, "", f"Next, in {place.folder}: look at params.yaml, then {tracked}{how_to_run(place.folder)}"]
    if place.beside and has_target("all", place.beside):
        lines.append(f"`make all` in {place.beside} runs all models")
    return "\n".join(lines)
