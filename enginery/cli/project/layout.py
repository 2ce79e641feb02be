"""The files of a project. Most are those of this repository itself, so that there is one pipeline and one text."""

import importlib.metadata
from pathlib import Path
from typing import NamedTuple

FILES = Path(__file__).parent / "files"
VERSION_FILE = Path(".enginery/version")
AS_LAID_OUT = Path(".enginery")  # what these files were before their owner changed them: `enginery upgrade` needs it
# Not under the name dvc.yaml: DVC would take it for a pipeline of this repository.
KEPT = {Path("dvc.yaml"): "pipeline.yaml", Path("machine/dvc.yaml"): "machine.yaml", Path("params.yaml"): "params.yaml"}
PLOTS = ("by_precision.json", "tradeoff.json")
DATA = ("calibration", "images", "models", "plugins", "texts", "weights")
HISTORY = "Nights of `make nightly`, one folder for each machine and model. Commit them.\n"
NIGHTLY = Path(".github/workflows/enginery.yml")


class Place(NamedTuple):
    """Where a project is: its folder, the root of its git repository, and of its DVC repository."""

    folder: Path
    git: Path
    dvc: Path


def version() -> str:
    return importlib.metadata.version("enginery")


def text_of(name: str) -> str:
    return (FILES / name).read_text()


def files_of(place: Place) -> dict[Path, str]:
    """Return what to write, by path."""
    within = place.folder.relative_to(place.git).as_posix()
    nightly = text_of("nightly.yml").replace("FOLDER", within).replace("VERSION", version())
    nightly = nightly.replace("name: enginery", f"name: {workflow_name(within)}", 1)
    return {
        **{place.folder / path: text_of(name) for path, name in KEPT.items()},
        **{place.folder / AS_LAID_OUT / path: text_of(name) for path, name in KEPT.items()},
        place.folder / VERSION_FILE: f"{version()}\n",
        place.folder / "Makefile": text_of("Makefile"),
        place.folder / "history/README.md": HISTORY,
        **{place.folder / "data" / name / ".gitkeep": "" for name in DATA},
        **{place.dvc / ".dvc/plots" / name: text_of(name) for name in PLOTS},
        place.git / NIGHTLY.with_stem(workflow_name(within)): nightly,
    }


def lines_of(place: Place) -> dict[Path, str]:
    """Return what to add to files that others write to as well."""
    return {place.folder / ".gitignore": text_of("gitignore"), place.dvc / ".dvcignore": text_of("dvcignore")}


def workflow_name(within: str) -> str:
    return "enginery" if within == "." else f"enginery-{within.replace('/', '-')}"
