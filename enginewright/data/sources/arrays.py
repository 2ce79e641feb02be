"""Read NumPy files: pixels, in an .npz with `images` and perhaps `labels` or an .npy, or an array for each input."""

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from enginewright.core.errors import EnginewrightError, bad_source
from enginewright.core.facts import Known
from enginewright.core.files import scratch_folder
from enginewright.core.params.samples import Preprocessing
from enginewright.core.text import in_one_line
from enginewright.data.feeds import INPUT_TYPES
from enginewright.data.preprocessing import Pixels, pixels_of
from enginewright.data.sample_set import Sample, input_file, start_npy_file
from enginewright.data.sources.files import LABELS, Classes, Labelled, Prepared, class_each
from enginewright.data.sources.truth import QUESTIONS, Truths, truths_of

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

    def image(self, index: int) -> Image.Image:
        pixels = self.images[index]
        return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)

    def prepare(self, index: int, how: Preprocessing) -> Prepared:
        pixels, image = np.ascontiguousarray(self.images[index]), self.image(index)
        sample = Sample(
            name=f"{self.name}/{index:0{self.digits}d}",
            sha256=hashlib.sha256(pixels.tobytes()).hexdigest(),
            label=None if self.labels is None else self.labels[index],
        )
        truth = None if self.truths is None else self.truths.prepare(index, how, image.size)
        return Prepared(sample, pixels_of(image, how), truth)


def open_array(path: Path, listed: Classes | None, known: Known) -> ImageArray:
    arrays = read_arrays(path, ("images", known.array, QUESTIONS))
    images, labels = arrays["images"], arrays.get(LABELS)
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or images.shape[3:] not in ((), (1,), (3,)):
        raise bad_source(
            f"the images of {path} are {images.dtype} of shape {images.shape}; they must be uint8 of shape (N, height, "
            "width), (N, height, width, 1) or (N, height, width, 3), red first"
        )
    pixels: Pixels = images.view(np.uint8)
    if 0 in images.shape:
        raise bad_source(f"{path} holds no images: its shape is {images.shape}")
    labelled = _labels(path, labels, len(images), listed, "image")
    return ImageArray(path.name, pixels, *labelled, truths=truths_of(known, path, arrays, len(images)))


def open_digits() -> ImageArray:
    """Open the 1,797 handwritten digits of 8 by 8 pixels that come with scikit-learn."""
    from sklearn.datasets import load_digits  # takes a second to import, and no other source needs it

    digits = load_digits()
    pixels = (digits.images * (255 / 16)).round().astype(np.uint8)
    return ImageArray("digits", pixels, digits.target.tolist(), tuple(map(str, digits.target_names)), digits=4)


def read_arrays(path: Path, expected: Sequence[str] = ()) -> dict[str, NDArray[np.generic]]:
    """Return the arrays of a NumPy file, or only those that are expected, of which the first must be there."""
    try:
        if path.suffix == ".npy":
            return {"images": np.load(path, mmap_mode="r", allow_pickle=False)}
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            if expected and expected[0] not in names:
                raise bad_source(
                    f"{path} holds {', '.join(names) or 'nothing'}, but no array called {expected[0]}; to feed the "
                    "model with arrays by the names of its inputs, set samples.preprocessing: null"
                )
            return {name: _map(archive, name) for name in names if not expected or name in expected}
    except EnginewrightError:
        raise
    except Exception as error:  # NumPy and zipfile raise what the parsers beneath them do: of Python, of zlib
        raise bad_source(f"{path} cannot be read as a NumPy file: {in_one_line(error)}") from None


def _map(archive: zipfile.ZipFile, name: str) -> NDArray[np.generic]:
    """Unpack an array, which may exceed memory, into a file that lasts as long as its map. NumPy refuses pickled
    objects: they could run code."""
    with archive.open(f"{name}.npy") as packed, scratch_folder() as scratch:
        try:
            with (scratch / "array.npy").open("wb") as file:
                shutil.copyfileobj(packed, file)
        except OSError as error:
            raise bad_source(
                f"{name} of {archive.filename} does not fit into {tempfile.gettempdir()}: {error.strerror}; the "
                "variable TMPDIR names another folder"
            ) from None
        array: NDArray[np.generic] = np.load(scratch / "array.npy", mmap_mode="r", allow_pickle=False)
        return array


@dataclass(frozen=True)
class Tensors:
    """Arrays that models without images, or with several inputs, take as they are."""

    name: str
    arrays: Mapping[str, NDArray[np.generic]]  # by the names of the inputs
    labels: list[int] | None
    class_names: tuple[str, ...]
    truths: Truths | None = None
    paired: bool = False  # each row is a pair of samples

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def write(self, indices: Sequence[int], folder: Path) -> list[Sample]:
        """Write samples one by one, so that memory does not grow with their number."""
        places = [(index, side) for index in indices for side in ((0, 1) if self.paired else ((),))]
        with ExitStack() as opened:
            files = []
            for position, array in enumerate(self.arrays.values()):
                shape = (len(places), *array.shape[2 if self.paired else 1 :])
                files.append(opened.enter_context(start_npy_file(folder / input_file(position), _native(array), shape)))
            return [self._write_sample(index, side, files) for index, side in places]

    def _write_sample(self, index: int, side: int | tuple[()], files: Sequence[IO[bytes]]) -> Sample:
        digest = hashlib.sha256()
        for (name, array), file in zip(self.arrays.items(), files, strict=True):
            row = np.ascontiguousarray(array[index][side], _native(array))
            if not np.isfinite(row).all():
                raise bad_source(f"{name} of {self.name} is NaN or infinite in sample {index}")
            digest.update(row.data)
            file.write(row.data)
        label = None if self.labels is None else self.labels[index]
        name = f"{self.name}/{index:06d}{'ab'[side] if isinstance(side, int) else ''}"
        return Sample(name=name, sha256=digest.hexdigest(), label=label)


def _native(array: NDArray[np.generic]) -> np.dtype[np.generic]:
    """Return the type in this machine's byte order, since engines read no other."""
    return array.dtype.newbyteorder("=")


def open_tensors(path: Path, listed: Classes | None, known: Known, only: str) -> Tensors:
    """Open an archive whose arrays have the names of the inputs, or the array of the `only` input. One more has what
    the task wants to know, such as `labels`. With a score of each pair, its two samples lie along the second axis."""
    if path.suffix not in ARRAY_SUFFIXES:
        raise bad_source(
            f"without samples.preprocessing, samples are arrays as the model takes them, and {path} is no .npz of "
            "these, and no .npy; images need samples.preprocessing"
        )
    arrays = read_arrays(path)
    if path.suffix == ".npy":
        arrays = {only: next(iter(arrays.values()))}
    labels = arrays.pop(LABELS, None) if known.labels else None
    names = {known.array, *([QUESTIONS] if known.questions else ())} - {LABELS}
    beside = {name: arrays.pop(name) for name in names & arrays.keys()}
    _require_feedable(path, arrays)
    truths = truths_of(known, path, beside, len(next(iter(arrays.values()))))
    paired = known.pairs and truths is not None
    if paired and (alone := [name for name, array in arrays.items() if array.shape[1:2] != (2,)]):
        raise bad_source(
            f"{path} has a score for each pair, so {alone[0]} needs the two samples of a pair along its second axis, "
            f"and its shape is {arrays[alone[0]].shape}"
        )
    classes = _labels(path, labels, len(next(iter(arrays.values()))), listed, "sample")
    return Tensors(path.name, arrays, *classes, truths=truths, paired=paired)


def _require_feedable(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    if not arrays:
        raise bad_source(f"{path} holds no array but labels; it needs one for each input")
    for name, array in arrays.items():
        if array.dtype.name not in INPUT_TYPES or array.ndim == 0 or 0 in array.shape:
            raise bad_source(
                f"{name} of {path} is {array.dtype} of shape {array.shape}; inputs are {', '.join(INPUT_TYPES)}, with "
                "the samples along the first axis"
            )
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise bad_source(f"the arrays of {path} have different numbers of samples: {found}")


def _labels(path: Path, labels: NDArray[np.generic] | None, count: int, listed: Classes | None, what: str) -> Labelled:
    if labels is not None and (labels.shape != (count,) or labels.dtype.kind not in "iuU"):
        raise bad_source(
            f"the labels of {path} are {labels.dtype} of shape {labels.shape}; they must be whole numbers or names of "
            f"shape ({count},), one for each {what}"
        )
    written = None if labels is None else [str(label) for label in labels.tolist()]
    return class_each(written, listed, lambda index: f"{path}, {what} {index},")
