"""Read a folder with the folders `images` and `masks`, in which an image and its mask have the same name."""

from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.user_files import lies_in
from enginewright.data.sources.classes import Classes
from enginewright.data.sources.files import IMAGE_SUFFIXES, ImageFiles
from enginewright.data.sources.truth import Masks


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
