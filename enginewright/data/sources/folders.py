"""Read a folder that has a folder for each class, or only images, which then have no labels."""

from collections import Counter
from pathlib import Path

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.user_files import lies_in
from enginewright.data.sources.arrays import ImageArray
from enginewright.data.sources.files import IMAGE_SUFFIXES, Classes, ImageFiles, class_each, is_image
from enginewright.data.sources.truth import Masks

# The split that users most likely want comes first.
SPLITS = ("validation", "valid", "val", "test", "training", "train")


def open_folder(root: Path, data: Path, listed: Classes | None) -> ImageFiles:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    unlabeled = sorted(entry for entry in root.iterdir() if is_image(entry))
    _refuse_splits(root, folders)
    labeled = [(file, folder.name) for folder in folders for file in sorted(folder.rglob("*")) if is_image(file)]
    _print_left_out_files(root)
    _print_left_out_links(root)
    if not labeled and not unlabeled:
        raise EnginewrightError(
            f"samples.source: {root} holds no images: it needs a folder per class, such as {root}/cat/1.jpg, or images "
            "alone, which then have no labels"
        )
    if labeled and unlabeled:
        raise EnginewrightError(
            f"samples.source: {root} holds images both in class folders, such as {labeled[0][0]}, and beside them, "
            f"such as {unlabeled[0]}: move them into a class folder, or out"
        )
    files = [file for file, _ in labeled] or unlabeled
    for file in files:
        if not lies_in(file, data):
            raise EnginewrightError(
                f"samples.source: {file} is a link out of {data}/, so DVC would not see it change: copy it there"
            )
    names = [file.relative_to(root).as_posix() for file in files]
    used = [folder for _, folder in labeled]
    if labeled and not listed:
        listed = Classes.of(_class_names(root, folders, used))
    return ImageFiles(files, names, *class_each(used or None, listed, lambda index: f"the folder of {files[index]}"))


def _print_left_out_files(root: Path) -> None:
    """Print which files are left out: notes may lie beside images, but photos of an unknown type would be missed."""
    files = [path for path in root.rglob("*") if path.is_file() and not is_image(path)]
    visible = (file for file in files if not any(part.startswith(".") for part in file.relative_to(root).parts))
    if others := Counter(file.suffix.lower() or "no suffix" for file in visible):
        counts = ", ".join(f"{count} of {suffix}" for suffix, count in sorted(others.items()))
        print(f"{root}: files that are no images by their names are left out: {counts}")


def _print_left_out_links(root: Path) -> None:
    """Print which links are left out. Links within a class are not followed, as they could lead in a circle."""
    links = sorted(path for path in root.rglob("*") if path.is_symlink() and not path.is_file())
    if out := [link for link in links if not (link.is_dir() and link.parent == root)]:
        print(f"{root}: links to folders, and to what is not there, are left out: {len(out)}, such as {out[0]}")


def _class_names(root: Path, folders: list[Path], used: list[str]) -> list[str]:
    """Return the names of the folders. Refuse a folder without images, as only the user knows if it is a class."""
    names = [folder.name for folder in folders]
    if empty := sorted({*names} - {*used}):
        some = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        raise EnginewrightError(
            f"samples.source: {root} holds folders without images, {some}: take them out, or, if they are "
            "classes, list all of them under samples.class_names"
        )
    return names


def _refuse_splits(root: Path, folders: list[Path]) -> None:
    """Refuse train/CLASS and val/CLASS, which are splits. A class may be called train if it holds images."""
    if found := [folder.name for folder in folders if folder.name in SPLITS and _holds_folders_only(folder)]:
        best = min(found, key=SPLITS.index)
        raise EnginewrightError(
            f"samples.source: {root} holds {', '.join(found)}, which look like the splits of a data set and not like "
            f"classes; name one of them, such as {root / best}: validation and calibration images are drawn from it"
        )


def _holds_folders_only(folder: Path) -> bool:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return any(entry.is_dir() for entry in entries) and not any(is_image(entry) for entry in entries)


# Read a folder with the folders `images` and `masks`, in which an image and its mask have the same name.


def open_masked_folder(root: Path, data: Path, listed: Classes | None, ignore: int) -> ImageFiles:
    images, masks = (pictures(root / name, data) for name in ("images", "masks"))
    if not images:
        raise EnginewrightError(
            f"samples.source: {root} holds no images for segmentation: it needs {root}/images, and {root}/masks with "
            "a PNG of class numbers of the same name for each"
        )
    for ours, others, there in ((images, masks, "masks"), (masks, images, "images")):
        if masks and (alone := sorted(ours.keys() - others.keys())):
            more = f", nor have {len(alone) - 1} more" if len(alone) > 1 else ""
            raise EnginewrightError(f"samples.source: {ours[alone[0]]} has no file of its name in {root / there}{more}")
    names = sorted(images)
    truths = Masks([masks[name] for name in names], ignore) if masks else None
    files = [images[name] for name in names]
    paths = [file.relative_to(root).as_posix() for file in files]
    return ImageFiles(files, paths, None, listed.names if listed else (), truths=truths)


def pictures(folder: Path, data: Path) -> dict[str, Path]:
    """Return the pictures in and below a folder by their names without suffix."""
    found: dict[str, Path] = {}
    for file in sorted(folder.rglob("*")):
        if file.suffix.lower() not in IMAGE_SUFFIXES or file.name.startswith(".") or not file.is_file():
            continue
        if not lies_in(file, data):
            raise EnginewrightError(
                f"samples.source: {file} is a link out of {data}/, so DVC would not see it change: copy it there"
            )
        name = file.relative_to(folder).with_suffix("").as_posix()
        if name in found:
            raise EnginewrightError(f"samples.source: {found[name]} and {file} have the same name but for their suffix")
        found[name] = file
    return found


# The 1,797 handwritten digits of 8 by 8 pixels that come with scikit-learn.


def open_digits() -> ImageArray:
    from sklearn.datasets import load_digits  # takes a second to import, and no other source needs it

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    return ImageArray("digits", pixels, digits.target.tolist(), tuple(map(str, digits.target_names)), digits=4)
