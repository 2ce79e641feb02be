"""Find how the images of a project become tensors: as the model's own configuration says, else by asking, else as is
usual. Where each value comes from is told, and which lines to check."""

import ast
import json
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from PIL import Image
from pydantic import ValidationError
from ruamel.yaml import YAML

from enginewright.core.errors import EnginewrightError
from enginewright.core.installing import how_to_install
from enginewright.core.params.samples import LARGEST_SIDE, Preprocessing
from enginewright.core.params.section import explain
from enginewright.core.text import as_in_yaml, in_one_line
from enginewright.data.sources.arrays import ARRAY_SUFFIXES
from enginewright.data.sources.files import is_image
from enginewright.model.from_transformers import IMAGES, preprocessing_of, side_or_sides, texts_of

PLACE, ATTRIBUTE = "samples.preprocessing", "preprocessing"
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}  # with which torchvision trains its networks
SIZE, LARGEST_OWN = 224, 640  # pixels; a network takes photographs, which are larger, scaled down
GUESS = "a guess, as "  # with which begins where a value comes from that nobody said
Ask = Callable[[str], str]  # which answers a question
QUESTIONS = {
    "crop": "size of the images that the model takes, in pixels",
    "color": "their channels: rgb, bgr or grey",
    "divide_by": "what 0..255 is divided by: 255 for shares, 1 for bytes as they are",
    "mean": "mean per channel, after that",
    "std": "standard deviation per channel",
}


class Stated(NamedTuple):
    """What a model says of its samples, and where; `values` is None for a model that takes no images."""

    values: Mapping[str, Any] | None = {}
    origin: str = ""
    text: Mapping[str, Any] | None = None  # of samples.text, for a model of texts
    input: str = ""  # its name
    unknown: str = "nothing says how the model was trained"  # why others are guessed


def of_timm(name: str) -> Stated:
    if find_spec("timm") is None:
        return Stated(unknown=f"timm is not installed, which knows it: {how_to_install('timm')}")
    from enginewright.model.factory import published_preprocessing

    found = published_preprocessing(name)
    return Stated(found[1], f"timm's configuration of {found[0]}") if found else Stated()


def of_transformers(folder: Path) -> Stated:
    if (found := preprocessing_of(folder)) is not None:
        return Stated(found, f"{folder.name}/{IMAGES}", unknown=f"{folder.name}/{IMAGES} does not say")
    if text := texts_of(folder):
        return Stated(None, f"{folder.name}, whose model reads texts", text)
    return Stated(unknown=f"{folder.name} has no {IMAGES}")


def of_torchvision(name: str) -> Stated:
    """Return what the published weights of a network want. Nothing is downloaded."""
    from torchvision.models import get_model_weights

    try:
        how = vars(get_model_weights(name).DEFAULT.transforms())
    except (ValueError, AttributeError):  # some networks have no weights
        return Stated()
    if len(how.get("resize_size", ())) != 1 or "mean" not in how:  # detectors and networks for video
        return Stated()
    resize, crop = how["resize_size"][0], (how.get("crop_size") or how["resize_size"])[0]
    found = {"resize": resize, "crop": crop, "interpolation": how["interpolation"].value, "mean": list(how["mean"])}
    found |= {"std": list(how["std"]), "color": "rgb", "divide_by": 255}
    return Stated(found, f"torchvision's published weights of {name}")


def of_factory(source: str, file: Path | None) -> Stated:
    """Return what `factory.preprocessing = {...}` says in the factory's module, or `preprocessing = {...}` in its
    class. It is read, and not run: importing a network may take long, and has effects of its own."""
    if file is None:
        return Stated()
    name, origin = source.partition(":")[2], f"{source}.{ATTRIBUTE}"
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the stage `weights` says where
        return Stated()
    bodies = [(tree.body, f"{name}.{ATTRIBUTE}")]
    bodies += [(node.body, ATTRIBUTE) for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    for body, target in bodies:
        for node in body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(each, ast.expr) and ast.unparse(each) == target for each in targets):
                return Stated(_literal(node, file), origin, unknown=f"{origin} does not say")
    return Stated()


def _literal(node: Any, file: Path) -> Mapping[str, Any] | None:
    with suppress(ValueError, TypeError):
        found = json.loads(json.dumps(ast.literal_eval(node.value)))  # with lists for tuples, as YAML has them
        if found is None or isinstance(found, dict):
            return found
    raise EnginewrightError(
        f"{file}, line {node.lineno}: {ATTRIBUTE} must be written out, as a dict such as {{'mean': [0.5, 0.5, 0.5], "
        "'std': [0.5, 0.5, 0.5]}, or None: `enginewright new` reads it without running your code"
    )


def of_onnx(path: Path) -> Stated:
    """Return the name of a file's only input, and what its shape says of images."""
    import onnx

    try:
        graph = onnx.load(path, load_external_data=False).graph
    except Exception:  # protobuf's errors; the stage `weights` says what is wrong
        return Stated()
    constant = {tensor.name for tensor in graph.initializer}
    inputs = [each for each in graph.input if each.name not in constant]
    if len(inputs) != 1:
        return Stated()
    shape = [dimension.dim_value for dimension in inputs[0].type.tensor_type.shape.dim]
    name, origin = inputs[0].name, f"the input of {path.name}"
    if not shape:
        return Stated({}, origin, input=name)
    if len(shape) != len(("batch", "channels", "height", "width")):
        return Stated(None, f"{origin}, which has no shape of images", input=name)
    last = shape[3] in (1, 3) and shape[1] not in (1, 3)
    channels, *sides = (shape[3], *shape[1:3]) if last else shape[1:]
    found = {"layout": "nhwc" if last else "nchw"} | ({"color": "grey"} if channels == 1 else {})
    return Stated(found | ({"crop": side_or_sides(*sides)} if all(sides) else {}), origin, input=name)


def headers(path: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return the shape and the type of each array of a NumPy file, whose values may take long to read."""
    try:
        if path.suffix == ".npy":
            with path.open("rb") as file:
                return {"images": _header(file)}
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy"): _header(archive.open(name)) for name in archive.namelist()}
    except (ValueError, OSError, zipfile.BadZipFile) as error:
        raise EnginewrightError(f"--images {path} cannot be read as a NumPy file: {in_one_line(error)}") from None


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], str]:
    reads = {(1, 0): np.lib.format.read_array_header_1_0}
    shape, _, dtype = reads.get(np.lib.format.read_magic(file), np.lib.format.read_array_header_2_0)(file)
    return shape, dtype.name


def size_of_images(path: Path) -> Any:
    """Return the size that images have, as `crop` has it; None if it differs or is that of photographs."""
    files = [file for file in path.rglob("*") if is_image(file)]
    shape = headers(path)["images"][0] if path.suffix in ARRAY_SUFFIXES else ()
    sizes = {shape[1:3]} if len(shape) in (3, 4) and shape[3:] in ((), (1,), (3,)) and all(shape) else set()
    for file in files[:: len(files) // 64 + 1]:
        with suppress(Exception), Image.open(file) as image:  # the stage `samples` names a broken one
            sizes.add(image.size[::-1])
    return side_or_sides(*sizes.pop()) if len(sizes) == 1 and max(max(sizes)) <= LARGEST_OWN else None


def choose(stated: Stated, size: int | None, ask: Ask | None, own: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Return all of samples.preprocessing, and where each value is from. What is not stated and matters is asked for,
    if there is a terminal. `own` is the size of the images, if it counts."""
    values = dict(stated.values or {})
    _require_possible(_filled(values), stated.origin)
    origins, guess = dict.fromkeys(values, f"from {stated.origin}"), f"{GUESS}{stated.unknown}"
    if size:
        resize, crop = (longest_side(_filled(values)[name]) for name in ("resize", "crop"))
        values |= {"resize": size * resize // crop, "crop": size}
        origins |= dict.fromkeys(("resize", "crop"), "from --size")
    matter = {"crop"} if "mean" in values else set(QUESTIONS)
    for name in QUESTIONS:
        if name not in values:
            usual, asks = _usual(name, values, own), ask if name in matter else None
            values[name] = _answer(name, usual, values, asks) if asks else usual
            guessed = f"{GUESS}the images have this size" if own and name == "crop" else guess
            origins[name] = "as you answered" if asks else guessed
    if values["crop"] == own and isinstance(own, int):  # there is no margin to cut off
        values["resize"], origins["resize"] = own, origins["crop"]
    rest = {name: value for name, value in _filled(values).items() if name not in values}
    values, origins = values | rest, origins | dict.fromkeys(rest, guess)
    _require_possible(values, stated.origin)
    order = [name for name in Preprocessing.model_fields if name in values]
    return {name: values[name] for name in order}, {name: origins[name] for name in order}


def _filled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values with all that must be beside them. A margin is cut off, but no side is cut much shorter."""
    channels = 1 if values.get("color") == "grey" else 3
    filled = {"mean": [0] * channels, "std": [1] * channels, "interpolation": "bilinear", **values}
    crop = filled.setdefault("crop", values.get("resize", SIZE))
    if "resize" not in values and (isinstance(crop, list) or "resize_mode" in values):
        filled |= {"resize": crop, "resize_mode": "stretch"}
    elif "resize" not in values:  # an impossible crop is refused alone
        filled["resize"] = crop * 8 // 7 if isinstance(crop, int) else LARGEST_SIDE
    return filled


def _usual(name: str, values: Mapping[str, Any], own: Any) -> Any:
    usual: dict[str, Any] = {"crop": own or values.get("resize", SIZE), "color": "rgb", "divide_by": 255, **IMAGENET}
    if name not in IMAGENET:
        return usual[name]
    found = usual[name] if values["divide_by"] == 255 else [{"mean": 0, "std": 1}[name]] * 3
    if values["color"] == "grey":
        return [round(sum(found) / 3, 3)]
    return found[::-1] if values["color"] == "bgr" else found


def _answer(name: str, usual: Any, values: Mapping[str, Any], ask: Ask) -> Any:
    """Ask until the answer is possible beside the values so far. Nothing, which Enter gives, means what is usual."""
    why = ""
    while True:
        given = ask(f"{why}{QUESTIONS[name]} [{as_in_yaml(usual).strip('[]')}]: ").strip()
        try:
            found = _parsed(name, given) if given else usual
            _require_possible(_filled({**values, name: found}), "")
            return found
        except ValueError:
            why = "not understood; "
        except EnginewrightError as error:
            why = f"{error}; "


def _parsed(name: str, given: str) -> Any:
    if name == "color":
        return given
    numbers = json.loads(f"[{given.strip('[] ')}]")
    return numbers[0] if len(numbers) == 1 and name in ("crop", "divide_by") else numbers


def _require_possible(values: Mapping[str, Any], origin: str) -> None:
    try:
        Preprocessing(**values)
    except ValidationError as error:
        raise EnginewrightError(f"{origin or PLACE}: {explain(error, Preprocessing, '')}") from None


def longest_side(side: int | list[int]) -> int:
    return side if isinstance(side, int) else max(side)


def lines_about(params: Mapping[str, Any], origins: Mapping[str, str], file: Path) -> list[str]:
    """Return lines on what was set, by place, where it is from, and which lines of params.yaml to check."""
    content = YAML().load(file)
    said = ["set in params.yaml:"] if origins else []
    for origin in dict.fromkeys(origins.values()):
        places = [place for place, each in origins.items() if each == origin]
        values = ", ".join(f"{place.removeprefix(f'{PLACE}.')} {as_in_yaml(_at(place, params))}" for place in places)
        parts = (place.rpartition(".") for place in places)
        lines = sorted(_at(section, content).lc.key(name)[0] + 1 for section, _, name in parts)
        check = f": check line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}"
        said.append(f"  {values}: {origin}{check if origin.startswith(GUESS) else ''}")
    return said


def _at(place: str, params: Mapping[str, Any]) -> Any:
    found: Any = params
    for name in filter(None, place.split(".")):
        found = found[name]
    return found
