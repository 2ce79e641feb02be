"""Arrays that are fed as they are, for models of several inputs or of none that is an image: .npz, one per input."""

import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.data.feeds import FED
from enginery.data.manifest import Sample
from enginery.data.sample_set import begun, file_of
from enginery.data.sources.archive import mapped, names_in
from enginery.data.sources.classes import LABELS, Classes, classes_of, number_labels


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
        """Sample by sample: memory does not grow with how many there are."""
        with ExitStack() as opened:
            files = [
                opened.enter_context(
                    begun(folder / file_of(position), _native(array), (len(indices), *array.shape[1:]))
                )
                for position, array in enumerate(self._arrays.values())
            ]
            return [self._write_sample(index, files) for index in indices]

    def _write_sample(self, index: int, files: Sequence[IO[bytes]]) -> Sample:
        digest = hashlib.sha256()
        for (name, array), file in zip(self._arrays.items(), files, strict=True):
            row = np.ascontiguousarray(array[index], _native(array))
            if not np.isfinite(row).all():
                raise EngineryError(f"samples.source: {name} of {self._name} is NaN or infinite in sample {index}")
            digest.update(row.data)
            file.write(row.data)
        label = None if self._labels is None else self._labels[index]
        return Sample(name=f"{self._name}/{index:06d}", sha256=digest.hexdigest(), label=label)


def _native(array: NDArray[np.generic]) -> np.dtype[np.generic]:
    """In this machine's byte order: engines read no other."""
    return array.dtype.newbyteorder("=")


def open_tensors(path: Path, listed: Classes | None) -> Tensors:
    """The arrays are the inputs, by their names; `labels`, if there, are labels."""
    if path.suffix != ".npz":
        raise EngineryError(
            f"samples.source: without samples.preprocessing, samples are arrays as the model takes them, and {path} "
            "is no .npz of these; images need samples.preprocessing"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            arrays = {name: mapped(archive, name) for name in names_in(archive)}
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
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iuU"):
        raise EngineryError(f"samples.source: the labels of {path} must be whole numbers or names, one for each sample")
    lengths = {name: len(array) for name, array in arrays.items()} | ({} if labels is None else {LABELS: len(labels)})
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise EngineryError(f"samples.source: the arrays of {path} have different numbers of samples: {found}")
