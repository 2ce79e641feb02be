"""Read pixels from a NumPy file: an .npz with `images` and perhaps `labels`, or an .npy with only images."""

import hashlib
import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginery.core.errors import EngineryError
from enginery.core.params.preprocessing import Preprocessing
from enginery.data.manifest import Sample
from enginery.data.preprocessing import Pixels, pixels_of
from enginery.data.sources.archive import map_array, names_in
from enginery.data.sources.classes import LABELS, Classes, classes_of, number_labels
from enginery.data.sources.source import Prepared

ARRAY_SUFFIXES = (".npy", ".npz")


class ImageArray:
    def __init__(self, name: str, images: Pixels, labels: list[int] | None, class_names: tuple[str, ...]) -> None:
        self.class_names = class_names
        self._name = name
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._images)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        pixels = np.ascontiguousarray(self._images[index])
        sample = Sample(
            name=f"{self._name}/{index:06d}",
            sha256=hashlib.sha256(pixels.tobytes()).hexdigest(),
            label=None if self._labels is None else self._labels[index],
        )
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
        return Prepared(sample, pixels_of(image, how))


def open_array(path: Path, listed: Classes | None) -> ImageArray:
    try:
        images, labels = _read(path)
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile) as error:  # what NumPy raises for broken files
        raise EngineryError(f"samples.source: {path} cannot be read as a NumPy file: {error}") from None
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise EngineryError(
            f"samples.source: the images of {path} are {images.dtype} of shape {images.shape}; they must be uint8 of "
            "shape (N, height, width), (N, height, width, 1) or (N, height, width, 3), red first"
        )
    pixels: Pixels = images.view(np.uint8)
    if 0 in images.shape:
        raise EngineryError(f"samples.source: {path} holds no images: its shape is {images.shape}")
    if labels is None:
        return ImageArray(path.name, pixels, None, listed.names if listed else ())
    if labels.shape != (len(images),) or labels.dtype.kind not in "iuU":
        raise EngineryError(
            f"samples.source: the labels of {path} are {labels.dtype} of shape {labels.shape}; they must be whole "
            f"numbers or names of shape ({len(images)},), one for each image"
        )
    written = [str(label) for label in labels.tolist()]

    def where(index: int) -> str:
        return f"{path}, image {index},"

    classes = listed or classes_of(written, where)
    return ImageArray(path.name, pixels, number_labels(written, classes, where), classes.names)


def _read(path: Path) -> tuple[NDArray[np.generic], NDArray[np.generic] | None]:
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False), None
    with zipfile.ZipFile(path) as archive:
        names = names_in(archive)
        if "images" not in names:
            raise ValueError(f"it holds {', '.join(names) or 'nothing'}, but no array called images")
        return map_array(archive, "images"), map_array(archive, LABELS) if LABELS in names else None
