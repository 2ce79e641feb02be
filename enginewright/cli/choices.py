"""Turn what the user has, such as a network, weights and images, into parameters and into files under data/."""

import filecmp
import re
from pathlib import Path
from typing import Any, NamedTuple

from enginewright.cli import preparation
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import LIBRARY
from enginewright.core.params.samples import TextPreprocessing
from enginewright.core.text import suggestion
from enginewright.core.user_files import WEIGHTS_WITHOUT_FILE, find_package, folders_above
from enginewright.data.sources.arrays import ARRAY_SUFFIXES
from enginewright.data.sources.files import is_image
from enginewright.data.sources.tables import SUFFIXES, read_rows
from enginewright.data.texts import padded_length
from enginewright.model.from_transformers import TOKENIZER

FACTORY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
# These are of the network that params.yaml has. Asking torchvision itself would take seconds.
AS_IN_PARAMS = preparation.Stated(
    {"resize": 256, "crop": 224, "interpolation": "bilinear", "color": "rgb", "divide_by": 255, **preparation.IMAGENET},
    "how torchvision trains its networks",
)


class Choices(NamedTuple):
    model: str | None = None
    images: str | None = None
    weights: str | None = None
    task: str | None = None
    size: int | None = None


class Taken(NamedTuple):
    """Parameters that differ from the defaults, and files to copy, by their place in the project. `origins` says where
    values come from that nobody gave, by their place in params.yaml."""

    params: dict[str, Any]
    copies: dict[Path, Path]
    origins: dict[str, str]
    folder: Path  # of the project
    home: Path  # of data/, which models beside each other share


def take(choices: Choices, folder: Path, home: Path | None = None, ask: preparation.Ask | None = None) -> Taken:
    """Look at what the user has, and ask for what it does not tell. Nothing is written, and no code of theirs runs."""
    taken = Taken({"task": choices.task} if choices.task else {}, {}, {}, folder, home or folder)
    stated = _take_model(choices.model, taken) if choices.model else AS_IN_PARAMS
    if choices.weights:
        source = choices.weights
        if source not in WEIGHTS_WITHOUT_FILE:
            instead = f"{', '.join(WEIGHTS_WITHOUT_FILE)} or a file"
            source = _copied(_existing(source, "--weights", instead), "weights", taken)
            if stated.origin:
                stated = stated._replace(origin=f"{stated.origin}; look whether yours were trained so")
        taken.params["weights"] = {"source": source}
    if choices.images:
        _take_samples(choices.images, stated, taken)
    if choices.images or (choices.model and not _trains(taken)):
        _prepare(choices, stated, taken, ask)
    return taken


def _trains(taken: Taken) -> bool:
    return bool(taken.params.get("weights", {"source": "train"})["source"] == "train")


def _take_model(model: str, taken: Taken) -> preparation.Stated:
    """Take the model, and return what it says of its samples."""
    library, source, weights = LIBRARY.fullmatch(model), model, "given"
    if model.endswith(".onnx"):
        path = _existing(model, "--model", "an ONNX file")
        source, stated = _copied(path, "models", taken), preparation.of_onnx(path)
    elif library and library[1]:
        weights, stated = "pretrained", preparation.of_timm(library[2])
    elif library:
        folder = _existing(library[4], "--model transformers:", "a folder of a model")
        source, stated = f"transformers:{_copied(folder, 'models', taken)}", preparation.of_transformers(folder)
    elif FACTORY.fullmatch(model):
        stated = preparation.of_factory(model, _require_module(model, taken.folder))
    else:
        from torchvision.models import list_models

        if model not in (known := list_models()):
            what = f"--model {model} is no ONNX file, no package.module:factory, and no model of torchvision"
            raise EnginewrightError(f"{what}{suggestion(model, known)}")
        weights, stated = "train", preparation.of_torchvision(model)
    taken.params["model"] = {"source": source}
    if weights != "train":
        taken.params["weights"] = {"source": weights}
    return stated


def _require_module(model: str, folder: Path) -> Path | None:
    """Return the file of a module. Refuse one that the pipeline would not find. None of its code runs."""
    module = model.partition(":")[0]
    package, _, rest = module.partition(".")
    found = find_package(package, folder)
    inner = [Path(each, *rest.split(".")) for each in (found and found.submodule_search_locations) or ()]
    if rest and not any(path.with_suffix(".py").exists() or path.is_dir() for path in inner):
        found = None
    if found is None:
        where = " or above" if len(folders_above(folder)) > 1 else ""
        raise EnginewrightError(
            f"--model {model}: there is no {module.replace('.', '/')}.py in {folder}{where}, nor such a package"
        )
    files = (file for path in inner for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())
    return next(files, None) if rest else Path(found.origin) if found.origin else None


def _take_samples(given: str, stated: preparation.Stated, taken: Taken) -> None:
    path, trains = _existing(given, "--images", "a folder of images, a .csv, an .npz or an .npy"), _trains(taken)
    is_text = stated.text is not None and path.suffix not in ARRAY_SUFFIXES
    if not is_text and path.suffix == ".csv" and path.read_bytes().startswith(b"text"):
        raise EnginewrightError(f"--images {path} holds texts: leave it out, and see docs/how-to/data.md on texts")
    source = _copied(path, "texts" if is_text else "images", taken)
    samples: dict[str, Any] = {"source": source} | ({} if trains else {"training": 0})
    if path.is_dir():
        samples |= _split(sum(map(is_image, path.rglob("*"))), path, trains)
    elif path.suffix in ARRAY_SUFFIXES:
        counts = [shape[0] for shape, _ in preparation.headers(path).values() if shape]
        samples |= _split(max(counts, default=0), path, trains)
    elif path.suffix in SUFFIXES:
        rows = read_rows(path)[1]
        samples |= _split(len(rows), path, trains)
        named = rows[0][1].get("path", "").strip()
        if named and not is_text and not Path(taken.home, source).parent.joinpath(named).exists():
            taken.origins["samples.source"] = "put the images that it names beside it"
    taken.params["samples"] = samples


def _prepare(choices: Choices, stated: preparation.Stated, taken: Taken, ask: preparation.Ask | None) -> None:
    """Set how a sample becomes what the model takes."""
    samples = taken.params.setdefault("samples", {})
    if stated.input:
        samples["input"], taken.origins["samples.input"] = stated.input, f"from {stated.origin}"
    path = Path(choices.images or "")
    if path.suffix in ARRAY_SUFFIXES and preparation.headers(path).get("images", ((), ""))[1] != "uint8":
        why = f"{path.name} holds arrays, which are fed as they are, and no pixels in uint8"
        samples["preprocessing"], taken.origins[preparation.PLACE] = None, why
    elif stated.values is None:
        samples["preprocessing"], taken.origins[preparation.PLACE] = None, f"from {stated.origin}"
        if stated.text:
            _take_texts(choices.model or "", stated, taken)
    else:
        if choices.task in ("detection", "segmentation") and not stated.values:  # a crop loses what is at the edges
            stated = stated._replace(values={"resize_mode": "stretch"}, origin="the task, which is about whole images")
        states_none = bool(choices.images) and not {"resize", "crop"} & (stated.values or {}).keys()
        own = preparation.size_of_images(path) if states_none else None
        samples["preprocessing"], origins = preparation.choose(stated, choices.size, ask, own)
        taken.origins.update({f"{preparation.PLACE}.{name}": origin for name, origin in origins.items()})
        if _trains(taken):
            training = {"size": preparation.longest_side(samples["preprocessing"]["crop"])}
            taken.params.setdefault("weights", {"source": "train"})["training"] = training
    if samples["preprocessing"] is None:  # there are no pixels to take
        taken.params.setdefault("build", {})["pixels"] = None


def _take_texts(model: str, stated: preparation.Stated, taken: Taken) -> None:
    """Set samples.text, and let the length vary as far as the model can take it."""
    text = dict(stated.text or {})
    tokenizer = _copied(Path(model.partition(":")[2], TOKENIZER), "texts", taken)
    taken.params["samples"]["text"] = {"tokenizer": tokenizer, **text}
    taken.origins.update({f"samples.text.{name}": f"from {stated.origin}" for name in ("tokenizer", *text)})
    how = TextPreprocessing(tokenizer=tokenizer, **text)
    if how.varies:
        sizes = {"min": how.shortest, "opt": padded_length(how.longest // 2, how), "max": how.longest}
        taken.params["build"] = {"profile": {"axes": {"sequence": sizes}}}


def _split(images: int, path: Path, trains: bool) -> dict[str, int]:
    """Divide a small set: the defaults need about 1,800 images where some are to learn from."""
    if not images:
        raise EnginewrightError(f"--images {path} holds no images")
    part = images // (6 if trains else 4)  # broken ones will go
    validation, calibration = min(512, max(1, 2 * part)), min(256, max(1, part))
    rest = images - validation - calibration
    return {"validation": validation, "calibration": calibration} | ({"training": min(1000, rest)} if trains else {})


def _existing(path: str, option: str, instead: str) -> Path:
    if not Path(path).exists():
        raise EnginewrightError(f"{option} {path} does not exist; give {instead}")
    return Path(path)


def _copied(path: Path, kind: str, taken: Taken) -> str:
    """Return the path under data/, which DVC watches. What lies elsewhere is copied there: DVC follows no links."""
    name = path.resolve().name
    for target in (Path("data", kind, each) for each in (name, f"{taken.folder.name}-{name}")):
        there = taken.home / target
        if not there.exists() or _same(path, there):
            taken.copies[target] = path
            return target.as_posix()
    raise EnginewrightError(f"{there} exists already, and is not {path}: rename one of them")


def _same(one: Path, other: Path) -> bool:
    names = [{file.relative_to(each) for file in (each, *each.rglob("*")) if file.is_file()} for each in (one, other)]
    return names[0] == names[1] and all(filecmp.cmp(one / name, other / name, shallow=False) for name in names[0])
