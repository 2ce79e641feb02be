"""A folder of class folders, or of images alone, which then have no labels."""

from collections import Counter
from pathlib import Path

from enginery.core.errors import EngineryError
from enginery.core.user_files import lies_in
from enginery.data.sources.classes import Classes, number_labels
from enginery.data.sources.files import IMAGE_SUFFIXES, ImageFiles

SPLITS = ("validation", "valid", "val", "test", "training", "train")  # the likeliest to be wanted comes first


def open_folder(root: Path, data: Path, listed: Classes | None) -> ImageFiles:
    folders = sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    alone = sorted(entry for entry in root.iterdir() if _is_image(entry))
    _refuse_splits(root, folders)
    labeled = [(file, folder.name) for folder in folders for file in sorted(folder.rglob("*")) if _is_image(file)]
    _tell_others(root)
    _tell_links(root)
    if not labeled and not alone:
        raise EngineryError(
            f"samples.source: {root} holds no images: it needs a folder per class, such as {root}/cat/1.jpg, or images "
            "alone, which then have no labels"
        )
    if labeled and alone:
        raise EngineryError(
            f"samples.source: {root} holds images both in class folders, such as {labeled[0][0]}, and beside them, "
            f"such as {alone[0]}: move them into a class folder, or out"
        )
    files = [file for file, _ in labeled] or alone
    _refuse_strays(files, data)
    names = [file.relative_to(root).as_posix() for file in files]
    if alone:
        return ImageFiles(files, names, None, listed.names if listed else ())
    classes = listed or Classes.of(_all_with_images(root, folders, [folder for _, folder in labeled]))
    labels = number_labels([folder for _, folder in labeled], classes, lambda index: f"the folder of {files[index]}")
    return ImageFiles(files, names, labels, classes.names)


def _is_image(entry: Path) -> bool:
    hidden = entry.name.startswith(".")  # what some systems put beside each photo
    return entry.suffix.lower() in IMAGE_SUFFIXES and not hidden and entry.is_file()


def _tell_others(root: Path) -> None:
    """Nothing stops at them, for notes may lie beside images. But photos of another kind are missed by no one else."""
    visible = (
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(root).parts)
    )
    others = Counter(path.suffix.lower() or "no suffix" for path in visible if not _is_image(path))
    if others:
        told = ", ".join(f"{count} of {suffix}" for suffix, count in sorted(others.items()))
        print(f"{root}: files that are no images by their names are left out: {told}")


def _tell_links(root: Path) -> None:
    """They are not followed within a class, where they could lead in a circle."""
    links = sorted(path for path in root.rglob("*") if path.is_symlink() and not path.is_file())
    lost = [link for link in links if not (link.is_dir() and link.parent == root)]
    if lost:
        print(f"{root}: links to folders, and to what is not there, are left out: {len(lost)}, such as {lost[0]}")


def _all_with_images(root: Path, folders: list[Path], used: list[str]) -> list[str]:
    """Whether an empty folder is a class, or was put there by a program, only the user knows: classes are counted."""
    names = [folder.name for folder in folders]
    if empty := sorted({*names} - {*used}):
        some = ", ".join(empty[:3]) + (", …" if len(empty) > 3 else "")
        raise EngineryError(
            f"samples.source: {root} holds folders without images, {some}: take them out, or, if they are "
            "classes, list all of them under samples.class_names"
        )
    return names


def _refuse_splits(root: Path, folders: list[Path]) -> None:
    """train/CLASS and val/CLASS: the splits of others are no classes. A class may be called train if it has images."""
    found = [folder.name for folder in folders if folder.name in SPLITS and _holds_folders_only(folder)]
    if found:
        best = min(found, key=SPLITS.index)
        raise EngineryError(
            f"samples.source: {root} holds {', '.join(found)}, which look like the splits of a data set and not like "
            f"classes; name one of them, such as {root / best}: validation and calibration images are drawn from it"
        )


def _holds_folders_only(folder: Path) -> bool:
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    return any(entry.is_dir() for entry in entries) and not any(_is_image(entry) for entry in entries)


def _refuse_strays(files: list[Path], data: Path) -> None:
    for file in files:
        if not lies_in(file, data):
            raise EngineryError(
                f"samples.source: {file} is a link out of {data}/, so DVC would not see it change: copy it there"
            )
