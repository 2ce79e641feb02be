"""Read a folder with the folders `images` and `labels`: for each image a text file of boxes, as YOLO has them."""

from pathlib import Path
from typing import Any

import numpy as np
from ruamel.yaml.error import YAMLError

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.params.reading import load_yaml, yaml_problem
from enginewright.data.box_rows import COLUMNS, COUNTED
from enginewright.data.sources.boxes import Boxes, Rows, require_boxes, wrong_box
from enginewright.data.sources.classes import MOST_CLASSES, Classes
from enginewright.data.sources.files import ImageFiles
from enginewright.data.sources.masked_folder import pictures

CLASSES_FILES = ("classes.txt", "data.yaml", "dataset.yaml")
Lines = list[tuple[int, list[float]]]  # the number of a line, and the row that it makes


def open_yolo_folder(root: Path, data: Path, listed: Classes | None) -> ImageFiles:
    images, labels = pictures(root / "images", data), _label_files(root / "labels")
    if not images:
        raise EnginewrightError(
            f"samples.source: {root} holds no images for detection: it needs {root}/images, and {root}/labels with a "
            "text file of the same name for each; or annotations.json"
        )
    names = sorted(images)
    files = [images[name] for name in names]
    paths = [file.relative_to(root).as_posix() for file in files]
    known = listed or _named_classes(root)
    if not (root / "labels").is_dir():
        return ImageFiles(files, paths, None, known.names if known else ())
    _require_pairs(root, images, labels)
    lines = [_read(labels[name], known) for name in names]
    rows = [np.array([row for _, row in each], np.float64).reshape(-1, COLUMNS) for each in lines]
    classes = known or _numbered(root, rows)
    require_boxes(root, rows, classes.names)
    boxes = Boxes(rows, lambda index, row: f"{labels[names[index]]}, line {lines[index][row][0]},", shares=True)
    return ImageFiles(files, paths, None, classes.names, truths=boxes)


def _label_files(folder: Path) -> dict[str, Path]:
    found = sorted(file for file in folder.rglob("*.txt") if file.name not in CLASSES_FILES)
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in found}


def _require_pairs(root: Path, images: dict[str, Path], labels: dict[str, Path]) -> None:
    for ours, others, there, hint in (
        (images, labels, "labels", ": an image without boxes has an empty one"),
        (labels, images, "images", ""),
    ):
        if alone := sorted(ours.keys() - others.keys()):
            more = f", nor have {len(alone) - 1} more" if len(alone) > 1 else ""
            raise EnginewrightError(
                f"samples.source: {ours[alone[0]]} has no file of its name in {root / there}{more}{hint}"
            )


def _read(file: Path, classes: Classes | None) -> Lines:
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise EnginewrightError(f"samples.source: {file} is no text in UTF-8") from None
    return [(number, _row(file, number, line, classes)) for number, line in enumerate(lines, 1) if line.strip()]


def _row(file: Path, number: int, line: str, classes: Classes | None) -> list[float]:
    """Return class, corners and kind of a line `class centre-x centre-y width height`."""
    cells = line.split()
    try:
        kind, x, y, width, height = map(float, cells)
    except ValueError:
        what = f"has {len(cells)} cells" if len(cells) != 5 else "holds what is no number"
        raise _mistake(file, number, f"{what}; a box is: class, centre x, centre y, width and height") from None
    most = len(classes.names) if classes else MOST_CLASSES
    if not (kind.is_integer() and 0 <= kind < most):
        raise _mistake(file, number, f"has the class {cells[0]}, which is not from 0 to {most - 1}")
    left, top = x - width / 2, y - height / 2
    if why := wrong_box((left, top, width, height)):
        raise _mistake(file, number, why)
    if max(width, height) > 2:
        raise _mistake(file, number, f"has a box of {width:g} by {height:g}; these are shares of the image, not pixels")
    return [kind, left, top, left + width, top + height, COUNTED]


def _named_classes(root: Path) -> Classes | None:
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
        raise EnginewrightError(f"samples.source: {file} cannot be read: {yaml_problem(error)}") from None
    if not isinstance(names, list) or not names or len({str(name) for name in names}) < len(names):
        raise EnginewrightError(f"samples.source: {file} has no list of classes with a name for each")
    return Classes.of([str(name) for name in names])


def _numbered(root: Path, rows: list[Rows]) -> Classes:
    most = max((int(each[:, 0].max()) for each in rows if len(each)), default=-1)
    if most < 0:
        raise EnginewrightError(f"samples.source: {root}/labels holds no box, and {CLASSES_FILES[0]} names no classes")
    return Classes.of([str(number) for number in range(most + 1)])


def _mistake(file: Path, number: int, what: str) -> EnginewrightError:
    return EnginewrightError(f"samples.source: {file}, line {number}, {what}")
