"""Read pixels from a NumPy file: an .npz with `images` and perhaps `labels`, or an .npy with only images."""

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.preprocessing import Preprocessing
from enginewright.core.scratch import scratch_folder
from enginewright.core.text import in_one_line
from enginewright.data.manifest import Sample
from enginewright.data.preprocessing import Pixels, pixels_of
from enginewright.data.sources.classes import LABELS, Classes, class_each
from enginewright.data.sources.files import Prepared
from enginewright.data.sources.truth import LABELLED, Known, Truths

ARRAY_SUFFIXES = (".npy", ".npz")


@dataclass(frozen=True)
class ImageArray:
    name: str
    images: Pixels
    labels: list[int] | None
    class_names: tuple[str, ...]
    digits: int = 6  # of the numbers in the names of samples
    truths: Truths | None = None

    def __len__(self) -> int:
        return len(self.images)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        pixels = np.ascontiguousarray(self.images[index])
        sample = Sample(
            name=f"{self.name}/{index:0{self.digits}d}",
            sha256=hashlib.sha256(pixels.tobytes()).hexdigest(),
            label=None if self.labels is None else self.labels[index],
        )
        image = Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)
        truth = None if self.truths is None else self.truths.prepare(index, how, image.size)
        return Prepared(sample, pixels_of(image, how), truth)


def open_array(path: Path, listed: Classes | None, known: Known = LABELLED) -> ImageArray:
    arrays = read_arrays(path, ("images", *known.arrays))
    images, labels = arrays["images"], arrays.get(LABELS)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise EnginewrightError(
            f"samples.source: the images of {path} are {images.dtype} of shape {images.shape}; they must be uint8 of "
            "shape (N, height, width), (N, height, width, 1) or (N, height, width, 3), red first"
        )
    pixels: Pixels = images.view(np.uint8)
    if 0 in images.shape:
        raise EnginewrightError(f"samples.source: {path} holds no images: its shape is {images.shape}")
    if labels is not None and (labels.shape != (len(images),) or labels.dtype.kind not in "iuU"):
        raise EnginewrightError(
            f"samples.source: the labels of {path} are {labels.dtype} of shape {labels.shape}; they must be whole "
            f"numbers or names of shape ({len(images)},), one for each image"
        )
    written = None if labels is None else [str(label) for label in labels.tolist()]
    labelled = class_each(written, listed, lambda index: f"{path}, image {index},")
    return ImageArray(path.name, pixels, *labelled, truths=known.truths(path, arrays, len(images)))


def read_arrays(path: Path, wanted: Sequence[str] = ()) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a NumPy file, or only those that are wanted, of which the first must be there."""
    try:
        if path.suffix == ".npy":
            return {"images": np.load(path, mmap_mode="r", allow_pickle=False)}
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if wanted and wanted[0] not in names:
                raise EnginewrightError(
                    f"samples.source: {path} holds {', '.join(names) or 'nothing'}, but no array called {wanted[0]}; "
                    "to feed the model with arrays by the names of its inputs, set samples.preprocessing: null"
                )
            return {name: _map(archive, name) for name in names if not wanted or name in wanted}
    except EnginewrightError:
        raise
    except Exception as error:  # NumPy and zipfile raise what the parsers beneath them do: of Python, of zlib
        raise EnginewrightError(
            f"samples.source: {path} cannot be read as a NumPy file: {in_one_line(error)}"
        ) from None


def _map(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """Unpack an array, which may exceed memory, into a file that lasts as long as its map.

    NumPy refuses pickled objects: they could run code.
    """
    with archive.open(f"{name}.npy") as packed, scratch_folder() as scratch:
        try:
            with (scratch / "array.npy").open("wb") as file:
                shutil.copyfileobj(packed, file)
        except OSError as error:
            raise EnginewrightError(
                f"samples.source: {name} of {archive.filename} does not fit into {tempfile.gettempdir()}: "
                f"{error.strerror}; the variable TMPDIR names another folder"
            ) from None
        array: NDArray[np.generic] = np.load(scratch / "array.npy", mmap_mode="r", allow_pickle=False)
        return array
