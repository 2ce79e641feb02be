"""`enginewright new`."""

import difflib
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from enginewright.cli import layout
from enginewright.cli.arguments import FILE, add_path
from enginewright.cli.choices import Choices, take
from enginewright.cli.preparation import Ask, lines_about
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file, new_folder, scratch_folder, write_text
from enginewright.core.installing import UNKNOWN, elsewhere, require_new_enough, upgrade_hint
from enginewright.core.params.all import edit_params, overlay
from enginewright.core.params.section import read_yaml
from enginewright.core.process import start_dvc
from enginewright.core.text import first_few, last_line

EXAMPLES = """\
examples:
  enginewright new                                       asks for what it needs
  enginewright new deploy --model nets:detector --images photos --size 320
  enginewright new --model resnet50 --weights best.pt --images photos
  enginewright new --name pets --model nets:pets        one more model, in pets

Writes dvc.yaml, params.yaml, a Makefile, a nightly workflow, data/ with copies
of images and weights, and lines for git and DVC. What is there already stays,
and is shown where it differs. It says where it has from how images become
tensors. `make all` runs all models with a --name. Exits 0, or 1 if something
cannot be: then nothing is written."""
QUESTIONS = {
    "model": "model: a name of torchvision, timm:NAME, package.module:factory, or FILE.onnx [resnet18]",
    "weights": "weights: train, pretrained, given, or a file",
    "images": "images: a folder, FILE.csv, FILE.npz or FILE.npy [scikit-learn's digits]",
    "task": "task: what the outputs mean, see docs/how-to/tasks.md [classification]",
}


def add_arguments(command: ArgumentParser) -> None:
    command.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="here if not given")
    command.add_argument("--name", help="one of several models: a folder, which shares data/")
    command.add_argument("--model", help="torchvision's NAME, timm:NAME, transformers:FOLDER, module:NAME, FILE.onnx")
    add_path(command, "--images", FILE, type=str, help="a folder of images, a .csv, or arrays, .npz or .npy")
    add_path(command, "--weights", FILE, type=str, help="train, pretrained, given, or a checkpoint")
    command.add_argument("--task", help="what the outputs mean, see docs/how-to/tasks.md")
    command.add_argument("--size", type=int, metavar="PIXELS", help="of the images, if not as the model says")


def run(chosen: Namespace) -> int:
    given = {name: getattr(chosen, name) for name in Choices._fields}
    ask = _ask if sys.stdin.isatty() else None
    if ask and not any(given.values()):
        given |= {name: ask(f"{question}: ").strip() or None for name, question in QUESTIONS.items()}
    print(make_project(Path(chosen.folder), Choices(**given), chosen.name, ask))
    return 0


def _ask(question: str) -> str:
    with suppress(EOFError):
        return input(question)
    print()
    return ""  # Ctrl-D takes what is usual, as Enter does


NAME = re.compile(r"[A-Za-z0-9][\w-]*")
OURS = ("machine", "stages")  # folders of the pipeline: packages of these names would stand in for its own


def make_project(folder: Path, choices: Choices, name: str | None = None, ask: Ask | None = None) -> str:
    """Write what is not there yet, and return what was done. What is there is never overwritten. `ask` puts a question
    to the user about what cannot be told otherwise."""
    place = place_of_one(folder.resolve(), name) if name else layout.find_place(folder.resolve())
    require_new_enough(place.folder)
    if hint := upgrade_hint(place.folder):
        raise EnginewrightError(hint)
    files = layout.files_of(place)
    _require_free(place.folder)
    params, home = place.folder / "params.yaml", None if (place.folder / "data").exists() else place.beside
    taken = take(choices, place.folder, home, None if params.exists() else ask)
    with scratch_folder() as scratch:  # what cannot be is refused before anything is written
        write_text(file := scratch / params.name, files[params])
        edit_params(lambda content: overlay(content, taken.params), "params.yaml would not be valid", file)
        files[params] = file.read_text(encoding="utf-8")
    place.folder.mkdir(parents=True, exist_ok=True)
    if not (place.dvc / ".dvc").is_dir():
        _init_dvc(place)
    if place.beside and not (place.folder / "data").exists():
        (place.folder / "data").symlink_to("../data")  # with the same paths, DVC takes what another model has made
    new = [path for path in files if not path.exists()]
    for path in new:
        write_text(path, files[path])
    layout.bring_wheel(place)
    layout.add_lines(place)
    copied = {place.folder / target: source for target, source in taken.copies.items()}
    copied = {target: source for target, source in copied.items() if not target.exists()}
    for target, source in copied.items():
        if source.is_dir():
            with new_folder(target) as unfinished:
                shutil.copytree(source, unfinished, dirs_exist_ok=True)
        else:
            with new_file(target) as temporary:
                shutil.copyfile(source, temporary)
    about = lines_about(taken.params, taken.origins, params) if params in new else []
    return _said(place, files, new, list(copied), about)


def place_of_one(beside: Path, name: str) -> layout.Place:
    """Return where one of several models is: in a folder that shares the user's files and the DVC repository."""
    if not NAME.fullmatch(name) or name in layout.TAKEN_NAMES:
        taken_names = ", ".join(layout.TAKEN_NAMES)
        raise EnginewrightError(
            f"--name {name}: take letters, digits, - and _, and none of {taken_names}, which are in use"
        )
    return layout.find_place(beside)._replace(folder=beside / name, beside=beside)


def _require_free(folder: Path) -> None:
    """Refuse a folder whose pipeline or packages would be mixed with ours."""
    elsewhere = f"take a folder of its own, such as `enginewright new {folder.name}/enginewright`"
    plan, ours = folder / "dvc.yaml", layout.planned_stages().keys() - {"machine"}
    content = read_yaml(plan) if plan.exists() else {"stages": ours}
    theirs = set(content.get("stages") or ()) if isinstance(content, Mapping) else set[str]()
    if not ours <= theirs:  # else it is a project of ours, perhaps of another version
        both = first_few(sorted(theirs & ours), 3)
        named = f", whose stages {both} are called as ours" if both else ""
        raise EnginewrightError(f"{plan} is another pipeline{named}: {elsewhere}")
    for name in OURS:
        if any((folder / f"{name}{ending}").exists() for ending in (".py", "/__init__.py")):
            raise EnginewrightError(f"{folder / name} is a package, and the pipeline has one of this name: {elsewhere}")


def _init_dvc(place: layout.Place) -> None:
    options = [] if place.dvc == place.git else ["--subdir"]
    for command in (["init", "--quiet", *options], ["config", "core.analytics", "false"]):
        with start_dvc(*command, folder=place.dvc, stderr=subprocess.PIPE) as child:
            said = child.communicate()[1]
        if child.returncode:
            raise EnginewrightError(f"`dvc {' '.join(command)}` failed: {last_line(said)}")


def _said(place: layout.Place, files: Mapping[Path, str], new: list[Path], copied: list[Path], about: list[str]) -> str:
    """Return what was made, how what was there already differs, what was set in params.yaml, and what comes next."""
    made = [path.relative_to(place.git).as_posix() for path in [*new, *copied] if ".enginewright" not in path.parts]
    lines = [f"made {path}" for path in made if not path.endswith(".gitkeep")]
    for path, text in files.items():
        if path not in new and path.read_text(encoding="utf-8") != text and ".enginewright" not in path.parts:
            name = path.relative_to(place.git).as_posix()
            lines.append(f"left {name} as it is; what would be written differs:")
            before = path.read_text(encoding="utf-8").splitlines()
            lines += difflib.unified_diff(before, text.splitlines(), name, "new", "", "", 1, "")
    if place.folder.joinpath("dvc.yaml") in new and UNKNOWN in elsewhere("pipeline"):
        nightly = layout.renewed_files(place)[layout.NIGHTLY].path.relative_to(place.git)
        lines.append(f"in {nightly}, write the address of Enginewright's git repository in place of ADDRESS")
    lines += [*about, "", f"Next, in {place.folder}: look at params.yaml, then {layout.how_to_run(place.folder)}"]
    if copied:
        tracked = shlex.join(os.path.relpath(path.resolve(), place.folder) for path in copied)
        lines.append(f"To keep it: dvc add {tracked} && git add --all && git commit")
    if place.beside and layout.has_target("all", place.beside):
        lines.append(f"`make all` in {place.beside} runs all models")
    return "\n".join(lines)
