"""Read arrays that models without images, or with several inputs, take as they are: one for each input in an .npz."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.data.feeds import INPUT_TYPES
from enginery.data.manifest import Sample
from enginery.data.sample_set import input_file, start_npy_file
from enginery.data.sources.arrays import read_arrays
from enginery.data.sources.classes import LABELS, Classes, class_each


@dataclass(frozen=True)
class Tensors:
    name: str
    arrays: Mapping[str, NDArray[np.generic]]  # by the names of the inputs
    labels: list[int] | None
    class_names: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def write(self, indices: Sequence[int], folder: Path) -> list[Sample]:
        """Write samples one by one, so that memory does not grow with their number."""
        with ExitStack() as opened:
            files = []
            for position, array in enumerate(self.arrays.values()):
                shape = (len(indices), *array.shape[1:])
                files.append(opened.enter_context(start_npy_file(folder / input_file(position), _native(array), shape)))
            return [self._write_sample(index, files) for index in indices]

    def _write_sample(self, index: int, files: Sequence[IO[bytes]]) -> Sample:
        digest = hashlib.sha256()
        for (name, array), file in zip(self.arrays.items(), files, strict=True):
            row = np.ascontiguousarray(array[index], _native(array))
            if not np.isfinite(row).all():
                raise EngineryError(f"samples.source: {name} of {self.name} is NaN or infinite in sample {index}")
            digest.update(row.data)
            file.write(row.data)
        label = None if self.labels is None else self.labels[index]
        return Sample(name=f"{self.name}/{index:06d}", sha256=digest.hexdigest(), label=label)


def _native(array: NDArray[np.generic]) -> np.dtype[np.generic]:
    """Return the type in this machine's byte order, since engines read no other."""
    return array.dtype.newbyteorder("=")


def open_tensors(path: Path, listed: Classes | None) -> Tensors:
    """Open an archive whose arrays have the names of the inputs. An array `labels` holds the labels."""
    if path.suffix != ".npz":
        raise EngineryError(
            f"samples.source: without samples.preprocessing, samples are arrays as the model takes them, and {path} "
            "is no .npz of these; images need samples.preprocessing"
        )
    arrays = read_arrays(path)
    labels = arrays.pop(LABELS, None)
    _require_feedable(path, arrays, labels)
    written = None if labels is None else [str(label) for label in labels.tolist()]
    return Tensors(path.name, arrays, *class_each(written, listed, lambda index: f"{path}, sample {index},"))


def _require_feedable(
    path: Path, arrays: Mapping[str, NDArray[np.generic]], labels: NDArray[np.generic] | None
) -> None:
    if not arrays:
        raise EngineryError(f"samples.source: {path} holds no array but labels; it needs one for each input")
    for name, array in arrays.items():
        if array.dtype.name not in INPUT_TYPES or array.ndim == 0 or 0 in array.shape:
            raise EngineryError(
                f"samples.source: {name} of {path} is {array.dtype} of shape {array.shape}; inputs are "
                f"{', '.join(INPUT_TYPES)}, with the samples along the first axis"
            )
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iuU"):
        raise EngineryError(f"samples.source: the labels of {path} must be whole numbers or names, one for each sample")
    lengths = {name: len(array) for name, array in arrays.items()} | ({} if labels is None else {LABELS: len(labels)})
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise EngineryError(f"samples.source: the arrays of {path} have different numbers of samples: {found}")
