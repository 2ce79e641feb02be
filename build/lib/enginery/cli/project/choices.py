"""Turn what the user has, such as a network, weights and images, into parameters and into files under data/."""

import filecmp
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from enginery.core.errors import EngineryError
from enginery.core.params.model import LIBRARY
from enginery.core.text import suggestion
from enginery.core.user_files import WEIGHTS_WITHOUT_FILE
from enginery.core.user_modules import find_package, folders_above
from enginery.data.sources.files import IMAGE_SUFFIXES

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# Torchvision trains its networks with these.
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}


class Choices(NamedTuple):
    model: str | None = None
    images: str | None = None
    weights: str | None = None
    task: str | None = None
    size: int | None = None


class Taken(NamedTuple):
    """Parameters that differ from the defaults, and files to copy, by their place in the project."""

    params: dict[str, Any]
    copies: dict[Path, Path]
    folder: Path  # of the project
    home: Path  # of data/, which models beside each other share


def take(choices: Choices, folder: Path, home: Path | None = None) -> Taken:
    """Look at what the user has. Nothing is written, and no code of theirs runs."""
    taken = Taken({"task": choices.task} if choices.task else {}, {}, folder, home or folder)
    if choices.model:
        _take_model(choices.model, taken)
    if choices.weights:
        source = choices.weights
        if source not in WEIGHTS_WITHOUT_FILE:
            source = _copied(_existing(source, "--weights", ", ".join(WEIGHTS_WITHOUT_FILE)), "weights", taken)
        taken.params["weights"] = {"source": source}
    if choices.images:
        _take_images(choices, taken)
    return taken


def _take_model(model: str, taken: Taken) -> None:
    if model.endswith(".onnx"):
        taken.params["model"] = {"source": _copied(_existing(model, "--model", "an ONNX file"), "models", taken)}
        taken.params["weights"] = {"source": "given"}
    elif library := LIBRARY.fullmatch(model):
        _take_library(library[1] or library[3], library[2] or library[4], taken)
    elif FACTORY.fullmatch(model):
        _require_module(model, taken.folder)
        taken.params["model"] = {"source": model}
        taken.params["weights"] = {"source": "given"}
    else:
        from torchvision.models import list_models

        if model not in (known := list_models()):
            raise EngineryError(
                f"--model {model} is no ONNX file, no package.module:factory, and no model of torchvision"
                f"{suggestion(model, known)}"
            )
        taken.params["model"] = {"source": model}


def _take_library(library: str, name: str, taken: Taken) -> None:
    if library == "transformers":
        name = _copied(_existing(name, "--model transformers:", "a folder of a model"), "models", taken)
    taken.params["model"] = {"source": f"{library}:{name}"}
    taken.params["weights"] = {"source": "given" if library == "transformers" else "pretrained"}


def _require_module(model: str, folder: Path) -> None:
    """Refuse a module that the pipeline would not find. None of its code runs."""
    module = model.partition(":")[0]
    package, _, rest = module.partition(".")
    found = find_package(package, folder)
    inner = [Path(each, *rest.split(".")) for each in (found and found.submodule_search_locations) or ()]
    if rest and not any(path.with_suffix(".py").exists() or path.is_dir() for path in inner):
        found = None
    if found is None:
        where = " or above" if len(folders_above(folder)) > 1 else ""
        raise EngineryError(
            f"--model {model}: there is no {module.replace('.', '/')}.py in {folder}{where}, nor such a package"
        )


def _take_images(choices: Choices, taken: Taken) -> None:
    path = _existing(choices.images or "", "--images", "a folder of images, a .csv or an .npz")
    size, trains = choices.size or 224, taken.params.get("weights", {"source": "train"})["source"] == "train"
    samples: dict[str, Any] = {"source": _copied(path, "images", taken)}
    samples["preprocessing"] = {"resize": size * 8 // 7, "crop": size, **IMAGENET}
    if not trains:
        samples["training"] = 0
    if path.is_dir():
        samples |= _split(sum(1 for _ in _images_in(path)), path, trains)
    taken.params["samples"] = samples
    if trains:
        taken.params.setdefault("weights", {"source": "train"})["training"] = {"size": size}


def _split(images: int, path: Path, trains: bool) -> dict[str, int]:
    """Divide a small set: the defaults need about 1,800 images."""
    if not images:
        raise EngineryError(f"--images {path} holds no images")
    validation, calibration = min(512, max(1, images // 3)), min(256, max(1, images // 6))
    rest = images - validation - calibration
    return {"validation": validation, "calibration": calibration} | ({"training": min(1000, rest)} if trains else {})


def _images_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)


def _existing(path: str, option: str, wanted: str) -> Path:
    if not Path(path).exists():
        raise EngineryError(f"{option} {path} does not exist; give {wanted}")
    return Path(path)


def _copied(path: Path, kind: str, taken: Taken) -> str:
    """Return the path under data/, which DVC watches. What lies elsewhere is copied there: DVC follows no links."""
    name = path.resolve().name
    for target in (Path("data", kind, each) for each in (name, f"{taken.folder.name}-{name}")):
        there = taken.home / target
        if not there.exists() or _same(path, there):
            taken.copies[target] = path
            return target.as_posix()
    raise EngineryError(f"{there} exists already, and is not {path}: rename one of them")


def _same(one: Path, other: Path) -> bool:
    if not one.is_dir() or not other.is_dir():
        return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)
    names = [{path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} for folder in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])
