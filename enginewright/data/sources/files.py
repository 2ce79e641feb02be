"""Read a folder of images, with a folder for each class, with masks beside them, or with images alone; and find the
classes that labels mean."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from enginewright.core.cores import in_parallel
from enginewright.core.errors import EnginewrightError, bad_source
from enginewright.core.files import sha256
from enginewright.core.params.samples import Preprocessing
from enginewright.core.progress import progress
from enginewright.core.text import first_few
from enginewright.core.user_files import lies_in, user_file
from enginewright.data.preprocessing import Pixels, decode, in_form
from enginewright.data.sample_set import Sample
from enginewright.data.sources.truth import Masks, Truths

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff"}


def is_image(entry: Path) -> bool:
    """Tell by its name whether a file is an image. To open a pipe would be to wait for who writes into it."""
    hidden = entry.name.startswith(".")  # some systems put hidden files beside each photo
    return entry.suffix.lower() in IMAGE_SUFFIXES and not hidden and entry.is_file()


def pictures(folder: Path, data: Path) -> dict[str, Path]:
    """Return the images in and below a folder by their names without suffix."""
    found: dict[str, Path] = {}
    for file in sorted(filter(is_image, folder.rglob("*"))):
        require_within(file, data)
        name = file.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise bad_source(f"{found[name]} and {file} have the same name but for their suffix")
        found[name] = file
    return found


def require_within(file: Path, data: Path) -> None:
    if not lies_in(file, data):
        raise bad_source(f"{file} is a link out of {data}/, so DVC would not see it change: copy it there")


def require_pairs(root: Path, images: dict[str, Path], others: dict[str, Path], there: str, hint: str = "") -> None:
    """Refuse an image without a file of its name in the folder `there`, and the other way round."""
    for ours, theirs, folder, ending in ((images, others, there, hint), (others, images, "images", "")):
        if alone := sorted(ours.keys() - theirs.keys()):
            more = f", nor have {len(alone) - 1} more" if len(alone) > 1 else ""
            raise bad_source(f"{ours[alone[0]]} has no file of its name in {root / folder}{more}{ending}")


def at_line(file: Path, line: int, what: str) -> EnginewrightError:
    return bad_source(f"{file}, line {line}, {what}")


class Prepared(NamedTuple):
    sample: Sample
    pixels: Pixels
    truth: NDArray[np.generic] | None = None


@dataclass(frozen=True)
class ImageFiles:
    """Image files. `names` are their names in the manifest, and `labels` is None for images without labels."""

    files: Sequence[Path]
    names: Sequence[str]
    labels: Sequence[int] | None
    class_names: tuple[str, ...]
    truths: Truths | None = None

    def __len__(self) -> int:
        return len(self.files)

    def image(self, index: int) -> Image:
        return decode(self.files[index])

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        file, label = self.files[index], None if self.labels is None else self.labels[index]
        sample, image = Sample(name=self.names[index], sha256=sha256(file), label=label), self.image(index)
        truth = self.truths.prepare(index, how, image.size) if self.truths else None
        return Prepared(sample, in_form(image, how, file), truth)

    def refusal(self, first: EnginewrightError) -> EnginewrightError:
        """Return the error, or one that names all broken files: who removes one after the other waits for each."""

        def is_broken(file: Path) -> bool:
            try:
                decode(file)
            except EnginewrightError:
                return True
            return False

        found = progress(in_parallel(is_broken, self.files), "looking for broken images", len(self), "images")
        broken = [str(file) for file, refused in zip(self.files, found, strict=True) if refused]
        if len(broken) < 2:
            return first
        return bad_source(
            f"{len(broken)} of {len(self)} images cannot be decoded, {first_few(broken)}: remove or convert them. One "
            f"of them: {first}"
        )


MOST_CLASSES = 100_000
NUMBER = re.compile(r"(-?\d+)(\.\d*)?")  # spreadsheets and pandas write whole numbers with a fraction, too
MOST_DIGITS = 9
LABELS = "labels"  # the name of the array of labels
Where = Callable[[int], str]  # says where the label of an index stands
Labelled = tuple[list[int] | None, tuple[str, ...]]  # the class of each sample, and the names of all


@dataclass(frozen=True)
class Classes:
    """The classes, in the order of the model's outputs. Labels use the `keys`, such as n01440764, and people read the
    `names`, such as tench."""

    keys: tuple[str, ...]
    names: tuple[str, ...]

    @classmethod
    def of(cls, names: Sequence[str], where: str, keys: Sequence[str] = ()) -> "Classes":
        """Return classes of distinct names, which are the keys, too, if there are no others."""
        classes = cls(tuple(keys or names), tuple(names))
        twice = [key for key, count in Counter(classes.keys).items() if count > 1]
        if twice or not names:
            raise EnginewrightError(f"{where} names {f'the class {twice[0]} twice' if twice else 'no class'}")
        return classes


def read_classes(given: str | tuple[str, ...] | None, data: Path) -> Classes | None:
    """Return the classes of the user's list, or of a text file: a line is key, tab and name, or one for both."""
    where = "samples.class_names"
    if given is None or isinstance(given, tuple):
        return None if given is None else Classes.of(given, where)
    path = user_file(given, data, where, "null, a list")
    try:
        lines = [line.strip().partition("\t") for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except (UnicodeDecodeError, IsADirectoryError):
        raise EnginewrightError(f"{where}: {path} is not a text file with a class per line") from None
    names, keys = [(name or key).strip() for key, _, name in lines], [key.strip() for key, _, _ in lines]
    return Classes.of(names, f"{where}: {path}", keys)


def class_each(labels: Sequence[str] | None, listed: Classes | None, where: Where) -> Labelled:
    """Return the place of each label in the list of classes, or None without labels, and the names of the classes."""
    if labels is None:
        return None, listed.names if listed else ()
    classes = listed or _classes_of(labels, where)
    return _places(labels, classes, where), classes.names


def _classes_of(labels: Sequence[str], where: Where) -> Classes:
    """Return the classes that labels name: names in alphabetical order, or all numbers from 0 to the largest."""
    if not any(map(NUMBER.fullmatch, labels)):
        return Classes.of(sorted(set(labels)), "")
    numbers = []
    for index, label in enumerate(labels):
        if (number := _whole(label)) is None:
            raise bad_source(
                f"{where(index)} gives the label {label!r}: label all with names, or all with whole numbers from 0, or "
                "list the classes under samples.class_names"
            )
        numbers.append(number)
    return Classes.of([str(number) for number in range(min(max(0, *numbers), MOST_CLASSES) + 1)], "")


def _places(labels: Sequence[str], classes: Classes, where: Where) -> list[int]:
    """Return the places of labels. Numbers that name no class are places themselves."""
    places = {key: place for place, key in enumerate(classes.keys)}
    by_number = all(NUMBER.fullmatch(label) for label in labels) and not places.keys() >= set(labels)
    numbers = [_whole(label) if by_number else places.get(label) for label in labels]
    for index, number in enumerate(numbers):
        if number is None or not 0 <= number < len(places):
            known = f"from 0 to {len(places) - 1}" if by_number else f"one of the {len(places)} in samples.class_names"
            raise bad_source(f"{where(index)} gives the label {labels[index]!r}, which is not {known}")
    return [number for number in numbers if number is not None]


def _whole(label: str) -> int | None:
    """Return the whole number that a label writes, perhaps with a fraction of zeros, or None. A number of more digits
    than any class has is cut short, and is then refused as no class."""
    found = NUMBER.fullmatch(label)
    if not found or (found[2] or "").strip(".0"):
        return None
    return int(found[1][: MOST_DIGITS + 1])


# The split that users most likely want comes first.
SPLITS = ("validation", "valid", "val", "test", "training", "train")


def open_folder(root: Path, data: Path, listed: Classes | None) -> ImageFiles:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    unlabeled = sorted(entry for entry in root.iterdir() if is_image(entry))
    _refuse_splits(root, folders)
    labeled = [(file, folder.name) for folder in folders for file in sorted(folder.rglob("*")) if is_image(file)]
    _print_what_is_left_out(root)
    if not labeled and not unlabeled:
        raise bad_source(
            f"{root} holds no images: it needs a folder per class, such as {root}/cat/1.jpg, or images alone, which "
            "then have no labels"
        )
    if labeled and unlabeled:
        raise bad_source(
            f"{root} holds images both in class folders, such as {labeled[0][0]}, and beside them, such as "
            f"{unlabeled[0]}: move them into a class folder, or out"
        )
    files = [file for file, _ in labeled] or unlabeled
    for file in files:
        require_within(file, data)
    labels = [folder for _, folder in labeled]
    if labels and not listed:  # only the user knows if a folder without images is a class
        if empty := sorted({folder.name for folder in folders} - {*labels}):
            raise bad_source(
                f"{root} holds folders without images, {first_few(empty, most=3)}: take them out, or, if they are "
                "classes, list all of them under samples.class_names"
            )
        listed = Classes.of([folder.name for folder in folders], f"samples.source: {root}")
    names = [file.relative_to(root).as_posix() for file in files]
    return ImageFiles(files, names, *class_each(labels or None, listed, lambda index: f"the folder of {files[index]}"))


def _print_what_is_left_out(root: Path) -> None:
    """Notes may lie beside images, but photos of an unknown type would be missed. Links within a class are not
    followed, as they could lead in a circle."""
    inside = sorted(root.rglob("*"))
    files = [path for path in inside if path.is_file() and not is_image(path)]
    visible = (file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts))
    if others := Counter(file.suffix.lower() or "no suffix" for file in visible):
        counts = ", ".join(f"{count} of {suffix}" for suffix, count in sorted(others.items()))
        print(f"{root}: files that are no images by their names are left out: {counts}")
    links = [path for path in inside if path.is_symlink() and not path.is_file()]
    if out := [link for link in links if not (link.is_dir() and link.parent == root)]:
        print(f"{root}: links to folders, and to what is not there, are left out: {len(out)}, such as {out[0]}")


def _refuse_splits(root: Path, folders: list[Path]) -> None:
    """Refuse train/CLASS and val/CLASS, which are splits. A class may be called train if it holds images."""

    def holds_folders_only(folder: Path) -> bool:
        entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
        return any(entry.is_dir() for entry in entries) and not any(is_image(entry) for entry in entries)

    if found := [folder.name for folder in folders if folder.name in SPLITS and holds_folders_only(folder)]:
        best = min(found, key=SPLITS.index)
        raise bad_source(
            f"{root} holds {', '.join(found)}, which look like the splits of a data set and not like classes; name one "
            f"of them, such as {root / best}: validation and calibration images are drawn from it"
        )


def open_masked_folder(root: Path, data: Path, listed: Classes | None, ignore: int) -> ImageFiles:
    """Open the folders `images` and `masks`, in which an image and its mask have the same name."""
    images, masks = (pictures(root / name, data) for name in ("images", "masks"))
    if not images:
        raise bad_source(
            f"{root} holds no images for segmentation: it needs {root}/images, and {root}/masks with a PNG of class "
            "numbers of the same name for each"
        )
    if masks:
        require_pairs(root, images, masks, "masks")
    files = [images[name] for name in sorted(images)]
    truths = Masks([masks[name] for name in sorted(images)], ignore) if masks else None
    paths = [file.relative_to(root).as_posix() for file in files]
    return ImageFiles(files, paths, None, listed.names if listed else (), truths=truths)
