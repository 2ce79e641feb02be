"""Read boxes of images as COCO has them, in one JSON file, and as YOLO has them, in a text file for each image."""

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field, ValidationError
from ruamel.yaml.error import YAMLError

from enginewright.core.errors import UNREADABLE, EnginewrightError, bad_source
from enginewright.core.facts import COLUMNS, COUNTED, CROWD
from enginewright.core.params.section import load_yaml, yaml_problem
from enginewright.core.text import first_few
from enginewright.core.user_files import lies_in
from enginewright.data.sources import files
from enginewright.data.sources.truth import Boxes, require_boxes, wrong_box

ANNOTATIONS = "annotations.json"  # in a folder of images
Identity = int | str


class CocoImage(BaseModel):
    id: Identity
    file_name: str
    width: int | None = None
    height: int | None = None


class CocoCategory(BaseModel):
    id: Identity
    name: Identity


class CocoAnnotation(BaseModel):
    image_id: Identity
    category_id: Identity
    bbox: tuple[float, float, float, float]  # left, top, width and height
    iscrowd: bool = False


class Coco(BaseModel):
    images: Annotated[list[CocoImage], Field(min_length=1)]
    annotations: list[CocoAnnotation]
    categories: Annotated[list[CocoCategory], Field(min_length=1)]


def open_coco(file: Path, data: Path, listed: files.Classes | None) -> files.ImageFiles:
    """Open NAME.json with its images in the folder NAME, or annotations.json within the folder of its images."""
    document = _read(file)
    images = _by_id(file, "images", document.images)
    categories = _by_id(file, "categories", document.categories)
    classes = listed or files.Classes.of(
        [str(categories[each].name) for each in sorted(categories)], f"samples.source: {file}"
    )
    place_of = {key: place for place, key in enumerate(classes.keys)}
    for number, category in enumerate(document.categories):
        if str(category.name) not in place_of:
            raise _mistake(file, "categories", number, f"is {category.name}, which is not in samples.class_names")
    places = {each.id: place_of[str(each.name)] for each in document.categories}
    found: dict[Identity, list[tuple[int, list[float]]]] = {identity: [] for identity in images}
    known_of: dict[str, Collection[Identity]] = {"image_id": images, "category_id": places}
    for number, annotation in enumerate(document.annotations):
        for field, known in known_of.items():
            if (value := getattr(annotation, field)) not in known:
                there = "images" if field == "image_id" else "categories"
                raise _mistake(file, "annotations", number, f"has the {field} {value}, which is not among the {there}")
        if why := wrong_box(annotation.bbox):
            raise _mistake(file, "annotations", number, why)
        left, top, width, height = annotation.bbox
        kind = CROWD if annotation.iscrowd else COUNTED
        row = [places[annotation.category_id], left, top, left + width, top + height, kind]
        found[annotation.image_id].append((number, row))
    rows = [np.array([row for _, row in each], np.float64).reshape(-1, COLUMNS) for each in found.values()]
    require_boxes(file, rows, classes.names)
    numbers = [[number for number, _ in each] for each in found.values()]
    sizes = [(each.width, each.height) if each.width and each.height else None for each in images.values()]
    boxes = Boxes(rows, lambda index, row: _where(file, "annotations", numbers[index][row]), sizes=sizes)
    paths = [_image_file(file, number, image.file_name, data) for number, image in enumerate(document.images)]
    # One without boxes would be listed, too.
    beside = {path for folder in {each.parent for each in paths} for path in folder.iterdir() if files.is_image(path)}
    if left_out := sorted(map(str, beside.difference(paths))):
        print(f"MIND: images beside those in {file}, and not listed there, are left out: {first_few(left_out, most=3)}")
    return files.ImageFiles(paths, [image.file_name for image in document.images], None, classes.names, truths=boxes)


def _read(file: Path) -> Coco:
    try:
        return Coco.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = first["loc"]  # such as annotations, 3, bbox
        where = _where(file, str(place[0]), int(place[1])) if len(place) > 1 else f"{file},"
        what = ".".join(map(str, place)) or "the document"
        raise bad_source(f"{where} {what}: {first['msg']}") from None


AnyEntry = TypeVar("AnyEntry", CocoImage, CocoCategory)


def _by_id(file: Path, name: str, entries: Sequence[AnyEntry]) -> dict[Identity, AnyEntry]:
    found: dict[Identity, AnyEntry] = {}
    for number, entry in enumerate(entries):
        if found.setdefault(entry.id, entry) is not entry:
            raise _mistake(file, name, number, f"has the id {entry.id} of another")
    return found


def _image_file(file: Path, number: int, name: str, data: Path) -> Path:
    folders = (file.with_suffix(""), file.parent, file.parent / "images")
    found = next((path for folder in folders if (path := folder / name).is_file()), None)
    if found is None:
        looked = f"neither in {folders[0]} nor in {folders[1]}" if file.name != ANNOTATIONS else f"not in {folders[1]}"
        raise _mistake(file, "images", number, f"names {name}, which is {looked}")
    if not lies_in(found, data):
        raise _mistake(
            file, "images", number, f"names {found}, which lies outside {data}/: DVC would not see it change"
        )
    return found


def _mistake(file: Path, name: str, number: int, what: str) -> EnginewrightError:
    return bad_source(f"{_where(file, name, number)} {what}")


def _where(file: Path, name: str, number: int) -> str:
    """Name an entry of a list and its line, which is found by reading the list up to it."""
    text = file.read_text("utf-8")
    if begin := re.search(rf'"{name}"\s*:\s*\[\s*', text):
        position, decoder = begin.end(), json.JSONDecoder()
        for _ in range(number):
            _, position = decoder.raw_decode(text, position)
            position = re.compile(r"[\s,]*").match(text, position).end()  # type: ignore[union-attr]
        return f"{file}, line {text.count(chr(10), 0, position) + 1}, entry {number} of {name},"
    return f"{file}, entry {number} of {name},"


CLASSES_FILES = ("classes.txt", "data.yaml", "dataset.yaml")


def open_yolo_folder(root: Path, data: Path, listed: files.Classes | None) -> files.ImageFiles:
    """Open the folders `images` and `labels`, in which an image and its boxes have the same name."""
    images, folder = files.pictures(root / "images", data), root / "labels"
    texts = sorted(file for file in folder.rglob("*.txt") if file.name not in CLASSES_FILES)
    labels = {file.relative_to(folder).with_suffix("").as_posix(): file for file in texts}
    if not images:
        raise bad_source(
            f"{root} holds no images for detection: it needs {root}/images, and {root}/labels with a text file of the "
            "same name for each; or annotations.json"
        )
    names = sorted(images)
    paths = [images[name] for name in names]
    written = [file.relative_to(root).as_posix() for file in paths]
    known = listed or _named_classes(root)
    if not folder.is_dir():
        return files.ImageFiles(paths, written, None, known.names if known else ())
    files.require_pairs(root, images, labels, "labels", ": an image without boxes has an empty one")
    lines = [_read_labels(labels[name], known) for name in names]
    rows = [np.array([row for _, row in each], np.float64).reshape(-1, COLUMNS) for each in lines]
    if (classes := known) is None:
        most = max((int(each[:, 0].max()) for each in rows if len(each)), default=-1)
        if most < 0:
            raise bad_source(f"{root}/labels holds no box, and {CLASSES_FILES[0]} names no classes")
        classes = files.Classes.of([str(number) for number in range(most + 1)], str(root))
    require_boxes(root, rows, classes.names)
    boxes = Boxes(rows, lambda index, row: f"{labels[names[index]]}, line {lines[index][row][0]},", shares=True)
    return files.ImageFiles(paths, written, None, classes.names, truths=boxes)


def _read_labels(file: Path, classes: files.Classes | None) -> list[tuple[int, list[float]]]:
    """Return the numbers of the lines that hold boxes, and the row that each makes."""
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise bad_source(f"{file} is no text in UTF-8") from None
    return [(number, _label(file, number, line, classes)) for number, line in enumerate(lines, 1) if line.strip()]


def _label(file: Path, number: int, line: str, classes: files.Classes | None) -> list[float]:
    """Return class, corners and kind of a line `class centre-x centre-y width height`."""
    cells = line.split()
    try:
        kind, x, y, width, height = map(float, cells)
    except ValueError:
        what = f"has {len(cells)} cells" if len(cells) != 5 else "holds what is no number"
        raise files.at_line(file, number, f"{what}; a box is: class, centre x, centre y, width and height") from None
    most = len(classes.names) if classes else files.MOST_CLASSES
    if not (kind.is_integer() and 0 <= kind < most):
        raise files.at_line(file, number, f"has the class {cells[0]}, which is not from 0 to {most - 1}")
    left, top = x - width / 2, y - height / 2
    if why := wrong_box((left, top, width, height)):
        raise files.at_line(file, number, why)
    if max(width, height) > 2:
        why = f"has a box of {width:g} by {height:g}; these are shares of the image, not pixels"
        raise files.at_line(file, number, why)
    return [kind, left, top, left + width, top + height, COUNTED]


def _named_classes(root: Path) -> files.Classes | None:
    """Return the names in classes.txt, a line each, or under `names` of data.yaml."""
    file = next((root / name for name in CLASSES_FILES if (root / name).is_file()), None)
    if file is None:
        return None
    try:
        if file.suffix == ".txt":
            names: Any = [line.strip() for line in file.read_text("utf-8-sig").splitlines() if line.strip()]
        else:
            names = (load_yaml(file.read_bytes()) or {}).get("names")
            names = [names[number] for number in sorted(names)] if isinstance(names, dict) else names
    except (YAMLError, *UNREADABLE) as error:
        raise bad_source(f"{file} cannot be read: {yaml_problem(error)}") from None
    if not isinstance(names, list):
        raise bad_source(f"{file} has no list of classes")
    return files.Classes.of([str(name) for name in names], f"samples.source: {file}")
