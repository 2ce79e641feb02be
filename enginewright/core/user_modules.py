"""Find the user's own modules."""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def folders_above(folder: Path) -> list[Path]:
    """Return the folder, and those above it up to the root of its git repository: a project may be one of its folders,
    beside the package that has the network."""
    parents = [folder, *folder.parents]
    root = next((number for number, each in enumerate(parents) if (each / ".git").exists()), 0)
    return parents[: root + 1]


def look_in_folders_above() -> None:
    """Let modules be imported from there. These folders come last, so that none of them stands in for a library."""
    sys.path.extend(folder for folder in map(str, folders_above(Path.cwd())) if folder not in sys.path)


def find_package(name: str, folder: Path) -> ModuleSpec | None:
    """Find a package as the stages of a project in this folder do, and run none of its code."""
    folders = list(map(str, folders_above(folder)))
    return PathFinder.find_spec(name, [*folders[:1], *sys.path, *folders[1:]])
