"""Read arrays that models without images, or with several inputs, take as they are: one for each input in an .npz."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.data.feeds import INPUT_TYPES
from enginewright.data.manifest import Sample
from enginewright.data.sample_set import input_file, start_npy_file
from enginewright.data.sources.arrays import ARRAY_SUFFIXES, read_arrays
from enginewright.data.sources.classes import LABELS, Classes, class_each
from enginewright.data.sources.truth import LABELLED, Known, Truths


@dataclass(frozen=True)
class Tensors:
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
                raise EnginewrightError(f"samples.source: {name} of {self.name} is NaN or infinite in sample {index}")
            digest.update(row.data)
            file.write(row.data)
        label = None if self.labels is None else self.labels[index]
        name = f"{self.name}/{index:06d}{'ab'[side] if isinstance(side, int) else ''}"
        return Sample(name=name, sha256=digest.hexdigest(), label=label)


def _native(array: NDArray[np.generic]) -> np.dtype[np.generic]:
    """Return the type in this machine's byte order, since engines read no other."""
    return array.dtype.newbyteorder("=")


def open_tensors(path: Path, listed: Classes | None, known: Known = LABELLED, only: str = "input") -> Tensors:
    """Open an archive whose arrays have the names of the inputs, or the array of the `only` input. One more has what
    the task wants to know, such as `labels`. Where that is a score of each pair, the two samples of a pair lie along
    the second axis."""
    if path.suffix not in ARRAY_SUFFIXES:
        raise EnginewrightError(
            f"samples.source: without samples.preprocessing, samples are arrays as the model takes them, and {path} "
            "is no .npz of these, and no .npy; images need samples.preprocessing"
        )
    arrays = read_arrays(path)
    if path.suffix == ".npy":
        arrays = {only: next(iter(arrays.values()))}
    labels = arrays.pop(LABELS, None) if known.labels else None
    told = {name: arrays.pop(name) for name in known.arrays if name in arrays and name != LABELS}
    _require_feedable(path, arrays, labels)
    truths = known.truths(path, told, len(next(iter(arrays.values()))))
    paired = known.task == "embedding" and truths is not None
    if paired and (alone := [name for name, array in arrays.items() if array.shape[1:2] != (2,)]):
        raise EnginewrightError(
            f"samples.source: {path} has a score for each pair, so {alone[0]} needs the two samples of a pair along "
            f"its second axis, and its shape is {arrays[alone[0]].shape}"
        )
    written = None if labels is None else [str(label) for label in labels.tolist()]
    classes = class_each(written, listed, lambda index: f"{path}, sample {index},")
    return Tensors(path.name, arrays, *classes, truths=truths, paired=paired)


def _require_feedable(
    path: Path, arrays: Mapping[str, NDArray[np.generic]], labels: NDArray[np.generic] | None
) -> None:
    if not arrays:
        raise EnginewrightError(f"samples.source: {path} holds no array but labels; it needs one for each input")
    for name, array in arrays.items():
        if array.dtype.name not in INPUT_TYPES or array.ndim == 0 or 0 in array.shape:
            raise EnginewrightError(
                f"samples.source: {name} of {path} is {array.dtype} of shape {array.shape}; inputs are "
                f"{', '.join(INPUT_TYPES)}, with the samples along the first axis"
            )
    if labels is not None and (labels.ndim != 1 or labels.dtype.kind not in "iuU"):
        raise EnginewrightError(
            f"samples.source: the labels of {path} must be whole numbers or names, one for each sample"
        )
    lengths = {name: len(array) for name, array in arrays.items()} | ({} if labels is None else {LABELS: len(labels)})
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise EnginewrightError(f"samples.source: the arrays of {path} have different numbers of samples: {found}")
