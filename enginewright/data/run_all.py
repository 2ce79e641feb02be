"""Run a model, a graph or an engine on many samples."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from enginewright.core.cores import Cluster, Work, spread
from enginewright.core.errors import EnginewrightError
from enginewright.core.progress import progress
from enginewright.data.feeds import Outputs, Places, Run
from enginewright.data.sample_set import Part, SampleSet, cut

Array = NDArray[np.generic]
Shape = tuple[int, ...]
OutputsOf = Callable[[SampleSet, Sequence[Places]], Iterator[Outputs]]  # of each batch, in order


def run_all(
    outputs: OutputsOf,
    samples: SampleSet,
    batch: int,
    whole: bool,
    label: str | None = None,
    chosen: Places | None = None,
) -> Outputs:
    """Return the outputs for all samples, or for those that are `chosen`, without those that only filled a batch.
    Outputs lie on disk, as masks of many images exceed memory, in nameless files, which vanish with their arrays."""
    chosen = np.arange(len(samples)) if chosen is None else chosen
    batches = samples.places(chosen, batch, whole)
    asked = [chosen[places] for places in batches]
    shorter = _shapes_when_shorter(outputs, samples, asked)
    kept: dict[str, _Kept] = {}
    left = len(chosen)
    with ExitStack() as opened:
        shown = progress(batches, label, len(batches), "batches") if label else batches
        for places, found in zip(shown, outputs(samples, asked), strict=True):
            counted = places[:left]
            lengths = None if samples.lengths is None else samples.lengths[chosen[counted]]
            for name, values in found.items():
                if len(values) != len(places):
                    raise EnginewrightError(f"output {name} has {len(values)} rows for {len(places)} samples")
                if name not in kept:
                    axes = _axes_of_texts(values.shape, shorter.get(name), samples, chosen[places])
                    kept[name] = _Kept(name, opened.enter_context(tempfile.TemporaryFile(dir=".")), values[:1], axes)
                kept[name].write(counted, values[: len(counted)], lengths)
            left -= len(counted)
        return {name: each.mapped(len(chosen)) for name, each in kept.items()}


def outputs_here(run: Run) -> OutputsOf:
    return lambda samples, batches: (run(samples.read_at(places)) for places in batches)


def outputs_on(work: Work[Part, list[Outputs]], cluster: Cluster | None) -> OutputsOf | None:
    """Return what runs batches on a cluster, or None if there is none."""
    if cluster is None:
        return None

    def outputs(samples: SampleSet, batches: Sequence[Places]) -> Iterator[Outputs]:
        for found in spread(work, cut(samples, batches), cluster):
            yield from found

    return outputs


@dataclass(frozen=True)
class Running(Work[Part, list[Outputs]]):
    """Run what is opened from a file or a folder: a model, a graph or an engine, with so many threads."""

    path: Path
    opened: Callable[[Path, int], AbstractContextManager[Run]]

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[Part], list[Outputs]]]:
        with self.opened(self.path, threads) as run:
            yield lambda part: [run(feeds) for feeds in part.feeds()]


class _Kept:
    """The file of one output. Its axes in `axes` are as long as the texts of a batch, of which the first is longest."""

    def __init__(self, name: str, file: IO[bytes], like: Array, axes: Sequence[int]) -> None:
        self._name, self._file, self._axes = name, file, axes
        self._dtype, self._shape = like.dtype, like.shape[1:]

    def write(self, places: Places, values: Array, lengths: Places | None) -> None:
        if self._axes and lengths is not None:
            values = self._filled_up(values, lengths)
        if values.shape[1:] != self._shape:
            raise EnginewrightError(
                f"output {self._name} has the shape {self._shape} for some samples and {values.shape[1:]} for others "
                "of the same size: what depends on their values cannot be compared; return it before it is selected"
            )
        rows = np.ascontiguousarray(values)
        one_after_the_other = np.array_equal(places, np.arange(places[0], places[0] + len(places)))
        for place, part in [(places[0], rows)] if one_after_the_other else zip(places, rows, strict=True):
            self._file.seek(int(place) * (rows.nbytes // len(rows)))
            self._file.write(part.data)

    def _filled_up(self, values: Array, lengths: Places) -> Array:
        """Return zeros behind each text: what a model returns for padding means nothing, and is no error."""
        filled = np.zeros((len(values), *self._shape), self._dtype)
        for row, value, length in zip(filled, values, lengths, strict=True):
            part = tuple(slice(length if axis + 1 in self._axes else None) for axis in range(value.ndim))
            row[part] = value[part]
        return filled

    def mapped(self, count: int) -> Array:
        self._file.flush()
        return np.memmap(self._file, self._dtype, "r", shape=(count, *self._shape))


def _shapes_when_shorter(outputs: OutputsOf, samples: SampleSet, batches: Sequence[Places]) -> Mapping[str, Shape]:
    """Return the shapes of the outputs for the batch of the shortest texts, if any are shorter than others."""
    if samples.lengths is None or len(batches) < 2:
        return {}
    longest, shortest = (samples.read_at(some) for some in (batches[0], batches[-1]))
    if all(longest[name].shape[1] == array.shape[1] for name, array in shortest.items()):
        return {}
    return {name: values.shape for name, values in next(outputs(samples, batches[-1:])).items()}


def _axes_of_texts(shape: Shape, shorter: Shape | None, samples: SampleSet, places: Places) -> list[int]:
    """Return the axes of an output that are as long as the texts: those that a shorter text makes shorter. If all are
    padded to one length, it is the second of three or more that has this length."""
    if samples.lengths is None:
        return []
    if shorter:
        return [axis for axis in range(1, len(shape)) if shape[axis] != shorter[axis]]
    length = next(iter(samples.read_at(places[:1]).values())).shape[1]
    return [1] if len(shape) > 2 and shape[1] == length else []
