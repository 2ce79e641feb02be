"""A split of the samples on disk: its manifest, its batches, and parts of it for other machines."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record, sha256_of
from enginewright.core.params.build import ENDS, BuildParams, Profile
from enginewright.core.params.samples import Layout, Preprocessing, TextPreprocessing
from enginewright.data.feeds import Axes, AxesOf, Feeds, HeldSizes, Places, resized
from enginewright.data.texts import padded_length


@dataclass(frozen=True, slots=True)
class Sample:
    """One of maybe millions: as a Record it would take twice the memory."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    sha256: str
    label: int | None


class PreparedTexts(Record):
    """The tokens of texts: by the tokenizer of this hash, whose largest id is `vocabulary` - 1. `cut` is how many
    of the texts were longer than a model may get, and `together` how many texts are one input."""

    how: TextPreprocessing
    tokenizer_sha256: str
    vocabulary: int
    cut: int
    together: int


class Manifest(Record):
    """The samples of one split, in order, with the inputs of the model that they are for and how they are prepared.
    `task` says what the model does with them, `class_names` is empty if unknown, and `preprocessing` is None for
    arrays, which are fed as they are; `text` is for texts. `values` are those of inputs that hold sizes, not rows."""

    task: str
    source: str
    inputs: tuple[str, ...]
    preprocessing: Preprocessing | None
    text: PreparedTexts | None = None
    class_names: tuple[str, ...]
    samples: tuple[Sample, ...]
    values: dict[str, int | tuple[int, ...]] = Field(default_factory=dict, exclude_if=operator.not_)

    @property
    def kind(self) -> str:
        """Return what the samples are called."""
        if self.text:
            return "texts"
        return "images" if self.preprocessing else "samples"


MANIFEST, TRUTH = "manifest.json", "truth.npy"
LENGTHS, TOKENIZER = "lengths.npy", "tokenizer.json"  # of texts
UNCROPPED = "uncropped.npz"  # the first images for a classifier, which it may know cropped otherwise
# The batch size that graphs are checked at, or the nearest that the profile has. The exporter sees a batch of two, so a
# batch size that is frozen into the graph fails here.
CHECKED_BATCH = 7


@dataclass(frozen=True)
class SampleSet:
    """Decoded pixels, or arrays as they came, on disk. They are read batch by batch, as they may exceed memory."""

    folder: Path
    manifest: Manifest
    sizes: Mapping[str, int] | None = None  # what `cycled` brings the axes of `sized` to, if not their own sizes
    sized: AxesOf | None = None
    held: Mapping[str, NDArray[Any]] | None = None  # the arrays of the inputs, in place of the files,
    held_lengths: NDArray[np.int64] | None = None  # and the lengths of texts
    pixels: Layout | None = None  # of images that are fed as bytes, which the graph normalizes

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
        return np.array(labels, np.int64) if len(labels) == len(self) else None

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
        how, text = self.manifest.preprocessing, self.manifest.text
        return sha256_of(text.model_dump(exclude={"cut"}) if text else how and how.model_dump())

    @cached_property
    def lengths(self) -> NDArray[np.int64] | None:
        """Return how many tokens each text has; None if the samples are no texts."""
        if self.held:
            return self.held_lengths
        return np.load(self.folder / LENGTHS) if self.manifest.text else None

    @property
    def axes(self) -> dict[int, str]:
        """Return the axes of the inputs that may vary, by number: the batch, and the height and width of images."""
        how = self.manifest.preprocessing
        first = 1 if how and (self.pixels or how.layout) == "nhwc" else 2
        return {0: "batch"} | ({first: "height", first + 1: "width"} if how else {})

    def read_at(self, places: Places) -> Feeds:
        """Return samples as the model takes them, or the engine if they are `fed_to` it, by the names of its inputs."""
        arrays = {name: array[places] for name, array in self._mapped_anew().items()}
        if self.manifest.text and self.lengths is not None:
            length = padded_length(int(self.lengths[places].max(initial=1)), self.manifest.text.how)
            return self._with_values({name: array[:, :length] for name, array in arrays.items()})
        return self._with_values(self._as_fed(arrays))

    def _as_fed(self, arrays: Feeds) -> Feeds:
        how = self.manifest.preprocessing
        if how is None:
            return arrays
        from enginewright.data.preprocessing import as_fed  # needs Pillow, which engines run without

        return {name: as_fed(array, how, self.pixels) for name, array in arrays.items()}

    def _with_values(self, feeds: Feeds) -> Feeds:
        """Add the inputs that hold sizes, after those with a row for each sample."""
        return {**feeds, **{name: np.array(values, np.int64) for name, values in self.manifest.values.items()}}

    def portion(self, places: Places) -> "SampleSet":
        """Return some samples in memory, without their names, so that they can be sent to another machine."""
        arrays = {name: np.asarray(array[places]) for name, array in self._mapped_anew().items()}
        lengths = None if self.lengths is None else self.lengths[places]
        unnamed = self.manifest.model_copy(update={"samples": ()})
        return replace(self, manifest=unnamed, held=arrays, held_lengths=lengths)

    def pixels_at(self, place: int) -> NDArray[np.uint8]:
        """Return the image as it is stored, before it is scaled to what the model takes."""
        (pixels,) = self._mapped_anew().values()
        return np.array(pixels[place])

    def cycled(self, count: int) -> Feeds:
        """Return `count` samples from the start. A smaller set is repeated, and an empty one gives zeros, or black."""
        places = np.arange(count) % max(1, len(self))
        if len(self):
            feeds = self.read_at(places)
        else:
            arrays = self._mapped_anew().items()
            zeros = {name: np.zeros((count, *array.shape[1:]), array.dtype) for name, array in arrays}
            feeds = self._with_values(self._as_fed(zeros))
        if self.sized is None or self.sizes is None:
            return feeds
        lengths = self.lengths[places] if self.lengths is not None and len(self) else None
        return resized(feeds, self.sized, self.sizes, lengths)

    def at(self, sizes: Mapping[str, int], profile: Profile) -> "SampleSet":
        """Return the samples repeated or cut to these sizes in `cycled`: timings do not depend on their content."""
        return replace(self, sizes=sizes, sized=varying_axes(replace(self, sizes=None), profile))

    def fed_to(self, build: BuildParams) -> "SampleSet":
        """Return the samples as engines take them: images in bytes, if build.pixels says so."""
        return replace(self, pixels=build.pixels if self.manifest.preprocessing else None)

    def tuned(self, build: BuildParams) -> "SampleSet":
        """Return the same for timings: texts at the length that engines are tuned for."""
        fed, profile = self.fed_to(build), build.profile
        return fed.at(profile.at("opt"), profile) if self.manifest.text else fed

    def batches(self, size: int, whole: bool = False) -> Iterator[Feeds]:
        """Yield batches. `whole` fills the last one from the start of the set, for graphs that take only one size."""
        for places in self.places(np.arange(len(self)), size, whole):
            yield self.read_at(places)

    def places(self, chosen: Places, size: int, whole: bool) -> list[Places]:
        """Divide samples into batches of places among the chosen: the longest texts first, so that little is padded."""
        order = np.arange(len(chosen)) if self.lengths is None else np.argsort(-self.lengths[chosen], kind="stable")
        batches = [order[start : start + size] for start in range(0, len(order), size)]
        if whole and batches:  # texts by texts of their own length
            fillers = order if self.lengths is None else batches[-1]
            batches[-1] = np.append(batches[-1], np.resize(fillers, size - len(batches[-1])))
        return batches

    def _mapped_anew(self) -> Mapping[str, NDArray[Any]]:
        """Map the files: what was read through a map counts as memory of the process until the map is closed."""
        if self.held:
            return self.held
        files = {name: self.folder / input_file(index) for index, name in enumerate(self.manifest.inputs)}
        return {name: np.load(file, mmap_mode="r") for name, file in files.items()}


def checked_feeds(samples: SampleSet, profile: Profile) -> list[Feeds]:
    """Return what graphs are checked on: samples at their own size, and at the smallest and largest of the profile."""
    ends = [samples.at(profile.at(bound), profile) for bound in ENDS] if profile.resizes else []
    return [each.cycled(profile.batch.nearest(CHECKED_BATCH)) for each in (samples, *ends)]


def varying_axes(samples: SampleSet, profile: Profile) -> AxesOf:
    """Return which axes of each input vary, by the profile's names. Refuse names that do not fit the samples."""
    holding = samples.manifest.values
    shapes = {name: array.shape for name, array in samples.cycled(1).items() if name not in holding}
    varying: dict[str, Axes] = {name: HeldSizes(profile.places(name)) for name in holding}
    varying |= {name: {n: axis for n, axis in samples.axes.items() if axis in profile.ranges} for name in shapes}
    for axis, sizes in profile.axes.items():
        place, found = f"build.profile.axes.{axis}", dict[str, int]()
        for name, number in sizes.numbers(shapes).items():
            if name not in shapes:
                raise EnginewrightError(f"{place}: there is no input {name}; the samples give {', '.join(shapes)}")
            if number >= len(shapes[name]):
                raise EnginewrightError(
                    f"{place}: input {name} has no axis {number}: the samples are {shapes[name][1:]}"
                )
            if number in varying[name]:
                raise EnginewrightError(
                    f"{place}: axis {number} of input {name} is the {varying[name][number]} already"
                )
            found[name], varying[name] = shapes[name][number], {**varying[name], number: axis}
        for name, number in sizes.values.items():
            values = np.atleast_1d(holding.get(name, ()))
            if number >= len(values):
                raise EnginewrightError(f"{place}: samples.values gives input {name} no number at place {number}")
            found[name] = int(values[number])
        if len(set(found.values())) > 1:
            several = ", ".join(f"{size} in {name}" for name, size in found.items())
            raise EnginewrightError(
                f"{place}: inputs that share an axis have one size there, and the samples {several}"
            )
        if (size := next(iter(found.values()))) not in sizes:
            raise EnginewrightError(f"{place}: the samples have {size} there, which is not within {sizes}")
    return varying


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


AT_ONCE = 128  # samples in a part, which follows from the samples alone, and never from how many machines there are


@dataclass(frozen=True)
class Part:
    """Some batches of the samples, which can be worked on anywhere."""

    samples: SampleSet
    batches: tuple[Places, ...]

    def feeds(self) -> Iterator[Feeds]:
        for places in self.batches:
            yield self.samples.read_at(places)

    def packed(self) -> Self:
        ends = np.cumsum([len(places) for places in self.batches])
        places = np.split(np.arange(ends[-1]), ends[:-1])
        return type(self)(self.samples.portion(np.concatenate(self.batches)), tuple(places))


def cut(samples: SampleSet, batches: Sequence[Places], at_once: int = AT_ONCE) -> list[Part]:
    """Return parts of whole batches: what a batch holds does not depend on the part that it is in."""
    if not batches:
        return []
    each = max(1, at_once // len(batches[0]))
    return [Part(samples, tuple(batches[start : start + each])) for start in range(0, len(batches), each)]
