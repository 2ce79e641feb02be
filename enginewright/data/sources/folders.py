"""Read a folder of images: with a folder for each class, with masks beside them, or with images alone."""

from collections import Counter
from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.data.sources.files import (
    Classes,
    ImageFiles,
    class_each,
    is_image,
    pictures,
    require_pairs,
    require_within,
)
from enginewright.data.sources.truth import Masks

# The split that users most likely want comes first.
SPLITS = ("validation", "valid", "val", "test", "training", "train")


def open_folder(root: Path, data: Path, listed: Classes | None) -> ImageFiles:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    unlabeled = sorted(entry for entry in root.iterdir() if is_image(entry))
    _refuse_splits(root, folders)
    labeled = [(file, folder.name) for folder in folders for file in sorted(folder.rglob("*")) if is_image(file)]
    _print_what_is_left_out(root)
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
        require_within(file, data)
    labels = [folder for _, folder in labeled]
    if labels and not listed:  # only the user knows if a folder without images is a class
        if empty := sorted({folder.name for folder in folders} - {*labels}):
            some = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
            raise EnginewrightError(
                f"samples.source: {root} holds folders without images, {some}: take them out, or, if they are "
                "classes, list all of them under samples.class_names"
            )
        listed = Classes.of([folder.name for folder in folders])
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
        raise EnginewrightError(
            f"samples.source: {root} holds {', '.join(found)}, which look like the splits of a data set and not like "
            f"classes; name one of them, such as {root / best}: validation and calibration images are drawn from it"
        )


def open_masked_folder(root: Path, data: Path, listed: Classes | None, ignore: int) -> ImageFiles:
    """Open the folders `images` and `masks`, in which an image and its mask have the same name."""
    images, masks = (pictures(root / name, data) for name in ("images", "masks"))
    if not images:
        raise EnginewrightError(
            f"samples.source: {root} holds no images for segmentation: it needs {root}/images, and {root}/masks with "
            "a PNG of class numbers of the same name for each"
        )
    if masks:
        require_pairs(root, images, masks, "masks")
    files = [images[name] for name in sorted(images)]
    truths = Masks([masks[name] for name in sorted(images)], ignore) if masks else None
    paths = [file.relative_to(root).as_posix() for file in files]
    return ImageFiles(files, paths, None, listed.names if listed else (), truths=truths)
