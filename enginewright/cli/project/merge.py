"""Merge what an owner changed in a file with what a new version changed: by git, three-way."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import ARTIFACTS, LOCK, scratch_folder
from enginewright.core.text import first_few
from enginewright.core.user_files import folders_above

CONFLICT = re.compile(r"^<{7} mine\n(.*?)^\|{7} base\n(.*?)^={7}\n.*?^>{7} new\n", re.MULTILINE | re.DOTALL)


def merge(mine: str, base: str, new: str, path: Path) -> str:
    """Return the text with both changes. Where both changed the same lines, only their owner can tell."""
    with scratch_folder() as folder:
        files = dict(zip(("mine", "base", "new"), (mine, base, new), strict=True))
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        labels = [part for name in files for part in ("-L", name)]
        command = ["git", "merge-file", "-p", "--diff3", *labels, *files]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if not 0 <= done.returncode <= 127:  # the number of conflicts
        raise EnginewrightError(f"{path}: git cannot merge it: {done.stderr.strip()}")
    if done.returncode:
        lines = [(ours or before).strip().partition("\n")[0] for ours, before in CONFLICT.findall(done.stdout)]
        raise EnginewrightError(
            f"{path} cannot be merged: you and this version changed {first_few([f'`{line}`' for line in lines], 3)}. "
            "Undo your change there, upgrade, and make it again; nothing was changed"
        )
    return done.stdout


# Say which stages run again after an upgrade, before any of them runs.

MACHINE_FILES = ("machine", "target", "dialect", "tools", "task")
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
    with (
        _copy_of(folder, {name: (folder / name).read_text(encoding="utf-8") for name in files}) as before,
        _copy_of(folder, files) as after,
    ):
        old, new = _stages(before), _stages(after)
        changed = _changed_by_machine(after, folder)
    first = [
        name
        for name, stage in new.items()
        if stage != old.get(name) or any(path in changed for path in stage.get("deps", []))
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
    outs = [part for name in MACHINE_FILES for part in (f"--{name}", f"made/{name}.json")]
    outs += [part for name in ("code", "parameters") for part in (f"--{name}", f"made/{name}")]
    above = json.dumps([str(each) for each in folders_above(folder)[1:]])
    command = [sys.executable, "-c", IN_COPY, above, "machine", *data, *outs]
    subprocess.run(command, cwd=copy, check=True, capture_output=True, text=True)
    files = (path for path in made.rglob("*.json") if path.is_file())
    return {
        (ARTIFACTS / path.relative_to(made)).as_posix()
        for path in files
        if not _same(path, copy / ARTIFACTS / path.relative_to(made))
    }


def _same(new: Path, old: Path) -> bool:
    return old.is_file() and old.read_bytes() == new.read_bytes()


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
