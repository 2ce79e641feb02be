"""Read a split of the samples from disk."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.files import sha256_of
from enginery.core.params.build import ENDS, Profile
from enginery.core.progress import progress
from enginery.data.feeds import AxesOf, Feeds, Outputs, Run, resized
from enginery.data.manifest import Manifest
from enginery.data.preprocessing import normalize

MANIFEST, TRUTH = "manifest.json", "truth.npy"
# The batch size that graphs are checked at, or the nearest that the profile has. The exporter sees a batch of two, so a
# batch size that is frozen into the graph fails here.
CHECKED_BATCH = 7


@dataclass(frozen=True)
class SampleSet:
    """Decoded pixels, or arrays as they came, on disk. They are read batch by batch, as they may exceed memory."""

    folder: Path
    manifest: Manifest

    @classmethod
    def open(cls, folder: Path) -> "SampleSet":
        return cls(folder, Manifest.read(folder / MANIFEST))

    def __len__(self) -> int:
        return len(self.manifest.samples)

    @property
    def truth(self) -> NDArray[Any] | None:
        """Return what the task compares answers with: labels, or else masks, targets or scores. None if not known."""
        file = self.folder / TRUTH
        return np.load(file, mmap_mode="r") if file.exists() else self.labels

    @property
    def labels(self) -> NDArray[np.int64] | None:
        labels = [sample.label for sample in self.manifest.samples if sample.label is not None]
        return np.array(labels, np.int64) if self.manifest.is_labeled else None

    @property
    def classes(self) -> int:
        """Return how many classes there are, or 0 if unknown."""
        return len(self.manifest.class_names)

    @property
    def list_sha256(self) -> str:
        """Return a hash of the samples and their order. It does not depend on how they were prepared."""
        return sha256_of([sample.sha256 for sample in self.manifest.samples])

    @property
    def preprocessing_sha256(self) -> str:
        how = self.manifest.preprocessing
        return sha256_of(how and how.model_dump())

    @property
    def axes(self) -> dict[int, str]:
        """Return the axes of the inputs that may vary, by number: the batch, and the height and width of images."""
        how = self.manifest.preprocessing
        first = 1 if how and how.layout == "nhwc" else 2
        return {0: "batch"} | ({first: "height", first + 1: "width"} if how else {})

    def read_at(self, indices: NDArray[np.int64]) -> Feeds:
        """Return samples as the model takes them, by the names of its inputs."""
        how = self.manifest.preprocessing
        arrays = {name: array[indices] for name, array in self._mapped_anew().items()}
        return {name: normalize(array, how) for name, array in arrays.items()} if how else arrays

    def pixels_at(self, place: int) -> NDArray[np.uint8]:
        """Return the image as it is stored, before it is scaled to what the model takes."""
        (pixels,) = self._mapped_anew().values()
        return np.array(pixels[place])

    def cycled(self, count: int) -> Feeds:
        """Return `count` samples from the start. A smaller set is repeated, and an empty one gives zeros."""
        if len(self):
            return self.read_at(np.arange(count) % len(self))
        dtype, arrays = np.float32 if self.manifest.preprocessing else None, self._mapped_anew()
        return {name: np.zeros((count, *array.shape[1:]), dtype or array.dtype) for name, array in arrays.items()}

    def batches(self, size: int, whole: bool = False) -> Iterator[Feeds]:
        """Yield batches. `whole` fills the last one from the start of the set, for graphs that take only one size."""
        for start in range(0, len(self), size):
            stop = start + size if whole else min(start + size, len(self))
            yield self.read_at(np.arange(start, stop) % len(self))

    def _mapped_anew(self) -> dict[str, NDArray[Any]]:
        """Map the files: what was read through a map counts as memory of the process until the map is closed."""
        files = {name: self.folder / input_file(index) for index, name in enumerate(self.manifest.inputs)}
        return {name: np.load(file, mmap_mode="r") for name, file in files.items()}


def checked_feeds(samples: SampleSet, profile: Profile) -> list[Feeds]:
    """Return what graphs are checked on: samples at their own size, and at the smallest and largest of the profile."""
    feeds = samples.cycled(profile.batch.nearest(CHECKED_BATCH))
    axes_of = varying_axes(samples, profile)
    ends = [resized(feeds, axes_of, profile.at(bound)) for bound in ENDS] if profile.resizes else []
    return [feeds, *ends]


def varying_axes(samples: SampleSet, profile: Profile) -> AxesOf:
    """Return which axes of each input vary, by the profile's names. Refuse names that do not fit the samples."""
    shapes = {name: array.shape for name, array in samples.cycled(1).items()}
    varying = {name: {n: axis for n, axis in samples.axes.items() if axis in profile.ranges} for name in shapes}
    for axis, sizes in profile.axes.items():
        place, found = f"build.profile.axes.{axis}", dict[str, int]()
        for name, number in sizes.numbers(shapes).items():
            if name not in shapes:
                raise EngineryError(f"{place}: there is no input {name}; the samples give {', '.join(shapes)}")
            if number >= len(shapes[name]):
                raise EngineryError(f"{place}: input {name} has no axis {number}: the samples are {shapes[name][1:]}")
            if number in varying[name]:
                raise EngineryError(f"{place}: axis {number} of input {name} is the {varying[name][number]} already")
            found[name], varying[name][number] = shapes[name][number], axis
        if len(set(found.values())) > 1:
            several = ", ".join(f"{size} in {name}" for name, size in found.items())
            raise EngineryError(f"{place}: inputs that share an axis have one size there, and the samples {several}")
        if (size := next(iter(found.values()))) not in sizes:
            raise EngineryError(f"{place}: the samples have {size} there, which is not within {sizes}")
    return varying


def run_all(run: Run, samples: SampleSet, batch: int, whole: bool, label: str) -> Outputs:
    """Return the outputs for all samples, without those for samples that only filled the last batch.

    They lie on disk, as masks of many images exceed memory, in files without a name, which vanish with their arrays.
    """
    first: dict[str, NDArray[np.generic]] = {}
    with ExitStack() as opened:
        files: dict[str, IO[bytes]] = {}
        for feeds in progress(samples.batches(batch, whole), label, -(-len(samples) // batch), "batches"):
            for name, values in run(feeds).items():
                if name not in files:
                    first[name], files[name] = values[:1].copy(), opened.enter_context(tempfile.TemporaryFile(dir="."))
                _require_same_shape(name, first[name], values)
                files[name].write(np.ascontiguousarray(values).data)
        return {name: _mapped(file, len(samples), first[name]) for name, file in files.items()}


def _require_same_shape(name: str, one: NDArray[np.generic], other: NDArray[np.generic]) -> None:
    if one.shape[1:] != other.shape[1:]:
        raise EngineryError(
            f"output {name} has the shape {one.shape[1:]} for some samples and {other.shape[1:]} for others of the "
            "same size: what depends on their values cannot be compared; return it before it is selected"
        )


def _mapped(file: IO[bytes], count: int, like: NDArray[np.generic]) -> NDArray[np.generic]:
    file.flush()
    return np.memmap(file, like.dtype, "r", shape=(count, *like.shape[1:]))


def input_file(index: int) -> str:
    """Name the file of an input by its number, since its name may hold what file names cannot."""
    return f"input-{index}.npy"


def output_file(index: int) -> str:
    return f"output-{index}.npy"


def start_npy_file(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> IO[bytes]:
    """Open a new .npy file and write its header. The caller writes the values."""
    file = path.open("wb")
    np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
    return file
