"""Find the user's own files, which must lie in the folders that DVC watches."""

import os
from collections.abc import Sequence
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
        raise EnginewrightError(
            f"{setting}: {path} does not lie in {data}/, so DVC would not see it change: move it there"
        )
    return found


def lies_in(path: Path, folder: Path) -> bool:
    """Tell whether the path lies in the folder when links are followed, except DVC's own links into its cache."""
    real = path.resolve()
    within = Path(os.path.normpath(path.absolute())).is_relative_to(folder.absolute())
    return real.is_relative_to(folder.resolve()) or (within and DVC_CACHE in real.as_posix())
