"""Arrays that are fed as they are, for models of several inputs or of none that is an image: .npz, one per input."""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.records import Sample
from enginery.samples import file_of
from enginery.sources.classes import Classes, classes_of, number_labels

LABELS = "labels"
FED = ("float32", "int32", "int64", "bool")  # what engines take


class Tensors:
    def __init__(
        self, name: str, arrays: Mapping[str, NDArray[np.generic]], labels: list[int] | None, names: tuple[str, ...]
    ) -> None:
        self.class_names = names
        self.inputs = tuple(arrays)
        self._name, self._arrays, self._labels = name, arrays, labels

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def write(self, indices: Sequence[int], folder: Path) -> list[Sample]:
        for position, array in enumerate(self._arrays.values()):
            np.save(folder / file_of(position), array[np.asarray(indices, np.int64)])
        return [self._sample(index) for index in indices]

    def _sample(self, index: int) -> Sample:
        content = b"".join(np.ascontiguousarray(array[index]).tobytes() for array in self._arrays.values())
        return Sample(
            name=f"{self._name}/{index:06d}",
            sha256=hashlib.sha256(content).hexdigest(),
            label=None if self._labels is None else self._labels[index],
        )


def open_tensors(path: Path, listed: Classes | None) -> Tensors:
    """The arrays are the inputs, by their names; `labels`, if there, are labels."""
    if path.suffix != ".npz":
        raise EngineryError(
            f"samples.source: without samples.preprocessing, samples are arrays as the model takes them, and {path} "
            "is no .npz of these; images need samples.preprocessing"
        )
    try:
        with path.open("rb") as file:
            archive = np.load(file, allow_pickle=False)  # pickled objects could run code
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array and not an archive of several")
            arrays = {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, OSError, KeyError, zipfile.BadZipFile) as error:  # NumPy's for broken files
        raise EngineryError(f"samples.source: {path} cannot be read as a NumPy file: {error}") from None
    labels = arrays.pop(LABELS, None)
    _require_feedable(path, arrays, labels)
    if labels is None:
        return Tensors(path.name, arrays, None, listed.names if listed else ())
    written = [str(label) for label in labels.tolist()]

    def where(index: int) -> str:
        return f"{path}, sample {index},"

    classes = listed or classes_of(written, where)
    return Tensors(path.name, arrays, number_labels(written, classes, where), classes.names)


def _require_feedable(
    path: Path, arrays: Mapping[str, NDArray[np.generic]], labels: NDArray[np.generic] | None
) -> None:
    if not arrays:
        raise EngineryError(f"samples.source: {path} holds no array but labels; it needs one for each input")
    for name, array in arrays.items():
        if array.dtype.name not in FED or array.ndim == 0 or 0 in array.shape:
            raise EngineryError(
                f"samples.source: {name} of {path} is {array.dtype} of shape {array.shape}; inputs are "
                f"{', '.join(FED)}, with the samples along the first axis"
            )
    lengths = {name: len(array) for name, array in arrays.items()} | ({} if labels is None else {LABELS: len(labels)})
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise EngineryError(f"samples.source: the arrays of {path} have different numbers of samples: {found}")
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iuU"):
        raise EngineryError(f"samples.source: the labels of {path} must be whole numbers or names, one for each sample")
