"""The files of a project. Most are those of this repository itself, so that there is one pipeline and one text."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from enginewright import __version__
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import write_text
from enginewright.core.installing import VERSION_FILE, elsewhere, wheel
from enginewright.core.params.all import all_defaults

FILES = Path(__file__).parent / "files"
# `enginewright upgrade` needs the files as they were before their owner changed them. They lie here under the names of
# FILES: one called dvc.yaml would be a second pipeline for DVC.
AS_LAID_OUT = Path(".enginewright")
PLAN, MACHINE_PLAN, NIGHTLY = "pipeline.yaml", "machine.yaml", "nightly.yml"
OWNERS = ("params.yaml", "fleet.yaml")  # the owner's alone, once they are laid out
DEFAULTS = AS_LAID_OUT / "defaults.json"  # of all parameters, so that an upgrade can say which ones changed
TARGETS = ("all", "fleet", "nightly", "repro")  # of the Makefile, where a model's name is one, too
TAKEN_NAMES = ("artifacts", "bundles", "cures", "data", "history", "machine", "reports", "stages", "tuned", *TARGETS)
DATA = ("calibration", "images", "models", "plugins", "texts", "traces", "weights")
HISTORY = "Nights of `make nightly`, one folder for each machine and model. Commit them.\n"


class Place(NamedTuple):
    """The place of a project: its folder, the root of its git repository, and of its DVC repository.

    `beside` is the folder of other models, whose data/ it shares."""

    folder: Path
    git: Path
    dvc: Path
    beside: Path | None = None

    @property
    def within(self) -> str:
        return self.folder.relative_to(self.git).as_posix()


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


class LaidOut(NamedTuple):
    """A file of a project that an upgrade renews."""

    path: Path
    text: str


def text_of(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def planned_stages() -> dict[str, Any]:
    """Return each stage of both plans by name, as it is written."""
    plans = (YAML(typ="safe").load(text_of(plan)) for plan in (MACHINE_PLAN, PLAN))
    return {name: stage for plan in plans for name, stage in plan["stages"].items()}


def renewed_files(place: Place) -> dict[str, LaidOut]:
    """Return what an upgrade renews, by its name in FILES."""
    workflow = "enginewright" if place.within == "." else f"enginewright-{place.within.replace('/', '-')}"
    nightly = text_of(NIGHTLY).replace("FOLDER", place.within).replace("REQUIREMENT", elsewhere("pipeline"))
    nightly = nightly.replace("ON_A_GPU", elsewhere("pipeline,tensorrt"))
    cache = place.dvc.relative_to(place.git) / ".dvc/cache"
    nightly = nightly.replace("WORKFLOW", workflow).replace("CACHE", cache.as_posix())
    paths = {
        PLAN: place.folder / "dvc.yaml",
        MACHINE_PLAN: place.folder / "machine/dvc.yaml",
        "Makefile": place.folder / "Makefile",
        "by_precision.json": place.dvc / ".dvc/plots/by_precision.json",
        "tradeoff.json": place.dvc / ".dvc/plots/tradeoff.json",
        NIGHTLY: place.git / f".github/workflows/{workflow}.yml",
    }
    return {name: LaidOut(path, nightly if name == NIGHTLY else text_of(name)) for name, path in paths.items()}


def as_laid_out(place: Place, files: Mapping[str, LaidOut]) -> dict[Path, str]:
    """Return what to keep of the files for the next upgrade, by path."""
    kept = {place.folder / AS_LAID_OUT / name: file.text for name, file in files.items()}
    defaults = json.dumps(all_defaults(), indent=1) + "\n"
    return kept | {place.folder / DEFAULTS: defaults, place.folder / VERSION_FILE: f"{__version__}\n"}


def bring_wheel(place: Place) -> None:
    """Put the wheel that this one was installed from into the project, whose workflow finds it nowhere else."""
    folder, found = place.folder / AS_LAID_OUT, wheel()
    if found and found.parent.resolve() != folder.resolve():
        for other in folder.glob("*.whl"):
            other.unlink()
        shutil.copyfile(found, folder / found.name)


def files_of(place: Place) -> dict[Path, str]:
    """Return what to write, by path."""
    renewed = renewed_files(place)
    # A file of the owner's own has no such past: an upgrade leaves it as it is.
    there = {name: file.path.read_text(encoding="utf-8") for name, file in renewed.items() if file.path.exists()}
    ours = {name: file for name, file in renewed.items() if there.get(name, file.text) == file.text}
    return {
        **dict(renewed.values()),
        **as_laid_out(place, ours),
        place.folder / "history/README.md": HISTORY,
        **{place.folder / name: text_of(name) for name in OWNERS},
        **dict.fromkeys(kept_empty(place), ""),
        **({place.beside / "Makefile": text_of("Makefile")} if place.beside else {}),
    }


def kept_empty(place: Place) -> list[Path]:
    """Return the files that let git keep the folders of data."""
    return [(place.beside or place.folder) / "data" / name / ".gitkeep" for name in DATA]


def add_lines(place: Place) -> None:
    """Add the lines that are missing to files that others write to as well."""
    ours = {place.folder / ".gitignore": "gitignore", place.folder / ".gitattributes": "gitattributes"}
    for path, name in (*ours.items(), (place.git / ".gitignore", "ignored"), (place.dvc / ".dvcignore", "dvcignore")):
        there = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if missing := [line for line in text_of(name).splitlines() if line not in there]:
            write_text(path, "".join(f"{line}\n" for line in [*there, *missing]))


def has_target(name: str, folder: Path) -> bool:
    """Tell whether the folder's Makefile, which may be the owner's own, can make this."""
    makefile = folder / "Makefile"
    text = makefile.read_text(encoding="utf-8") if makefile.is_file() else ""
    return re.search(rf"^{name}\s*:(?!=)", text, re.MULTILINE) is not None


def how_to_run(folder: Path) -> str:
    return "make repro" if has_target("repro", folder) else "python -m dvc repro"
