"""Find the user's own modules, and files, which must lie in the folders that DVC watches."""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from enginewright.core.errors import EnginewrightError

DVC_CACHE = "/files/md5/"
WEIGHTS_WITHOUT_FILE = ("train", "pretrained", "given")  # what weights.source may be instead of a file


def user_model(source: str, models: Path) -> Path:
    return user_file(source, models, "model.source", "a torchvision model")


def user_folder(name: str, models: Path) -> Path:
    """Return the folder of a model of transformers. Names of its hub are refused: no stage asks the network."""
    if not Path(name).exists() and not Path(name).is_relative_to(models):
        raise EnginewrightError(
            f"model.source: {name} is no folder here, and models are not downloaded by name: where there is a network, "
            f"run AutoModel.from_pretrained('{name}').save_pretrained('{models}/FOLDER'), with the AutoModelFor... of "
            f"its task, then set transformers:{models}/FOLDER"
        )
    return user_file(name, models, "model.source", "transformers:FOLDER")


def user_checkpoint(source: str, weights: Path) -> Path:
    return user_file(source, weights, "weights.source", ", ".join(WEIGHTS_WITHOUT_FILE))


def user_calibration(file: str, calibration: Path) -> Path:
    return user_file(file, calibration, "calibration.file", "null")


def user_plugins(files: Sequence[str], plugins: Path) -> list[Path]:
    return [user_file(file, plugins, "build.tensorrt.plugins", "[]") for file in files]


def user_file(path: str, data: Path, setting: str, keywords: str) -> Path:
    """Return the file or folder that the parameter `setting` names. Refuse one outside `data`, which DVC watches."""
    found = Path(path)
    if not found.exists():
        raise EnginewrightError(f"{setting}: {path} does not exist; give {keywords} or a path in {data}/")
    if not lies_in(found, data) or found.resolve() == data.resolve():
        raise EnginewrightError(f"{setting}: {path} does not lie in {data}/, where DVC sees it change: move it there")
    return found


def lies_in(path: Path, folder: Path) -> bool:
    """Tell whether the path lies in the folder when links are followed, except DVC's own links into its cache."""
    real = path.resolve()
    within = Path(os.path.normpath(path.absolute())).is_relative_to(folder.absolute())
    return real.is_relative_to(folder.resolve()) or (within and DVC_CACHE in real.as_posix())


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
