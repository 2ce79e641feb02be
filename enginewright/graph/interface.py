"""The inputs and outputs of a graph and its engine: names, types, and which axes vary."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from enginewright.core.files import Record
from enginewright.core.params.build import BuildParams
from enginewright.data.feeds import BATCH, Feeds

APART = "enginewright.apart"  # in a graph's metadata: the names of the outputs that nobody reads


class TensorSpec(Record):
    """A tensor of a graph and its engine. A size that varies is a name: batch, height or width. A size of an output
    that follows from these, or from the values of the inputs, has the graph's own name, such as height//8, or ? where
    the graph has none: only a run tells how large it is. An input that holds sizes has their names in `values`."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    values: tuple[str, ...] = Field(default=(), exclude_if=operator.not_)

    def values_at(self, sizes: Mapping[str, int]) -> list[int]:
        return [sizes[axis] for axis in self.values]

    def at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(size if isinstance(size, int) else sizes[size] for size in self.shape)

    def fits(self, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Tell whether the tensor may have this shape. An axis without an entry in `sizes` may have any size."""
        expected = [sizes.get(size, size) if isinstance(size, str) else size for size in self.shape]
        return len(shape) == len(expected) and all(
            found == size or (isinstance(size, str) and found >= 0) for found, size in zip(shape, expected, strict=True)
        )


class Interface(Record):
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def sampled(self) -> tuple[TensorSpec, ...]:
        """Return the inputs with a row for each sample, without those that hold sizes."""
        return tuple(spec for spec in self.inputs if not spec.values)

    def sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each axis that varies, from the shapes of the inputs."""
        axes = (pair for spec in self.inputs for pair in zip(spec.shape, shapes[spec.name], strict=True))
        return {axis: size for axis, size in axes if isinstance(axis, str)}

    def holding(self, sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        """Return the inputs that hold sizes."""
        held = {spec: np.array(spec.values_at(sizes), spec.dtype) for spec in self.inputs if spec.values}
        return {spec.name: values.reshape(spec.at(sizes)) for spec, values in held.items()}

    def zeros(self, sizes: Mapping[str, int]) -> dict[str, NDArray[np.generic]]:
        """Return zeros for each input but those that hold sizes."""
        return {spec.name: np.zeros(spec.at(sizes), spec.dtype) for spec in self.sampled} | self.holding(sizes)

    def noise(self, sizes: Mapping[str, int], seed: int) -> dict[str, NDArray[np.generic]]:
        """Return noise for each input of floats, and for the others what `zeros` has."""
        random, zeros = np.random.default_rng(seed), self.zeros(sizes)
        floats = {name: random.standard_normal(array.shape) for name, array in zeros.items() if array.dtype.kind == "f"}
        return zeros | {name: values.astype(zeros[name].dtype) for name, values in floats.items()}


@dataclass(frozen=True)
class Blueprint:
    """All that a runtime must know to build an engine, and again to open it."""

    interface: Interface
    build: BuildParams
    apart: Sequence[TensorSpec] = ()  # that the compiler must not fuse away
    example: Feeds = field(default_factory=dict, compare=False)  # of the smallest batch, to run once; without it, noise
    longest: float | None = field(default=None, compare=False)  # seconds, after which TensorRT's builder is ended
    is_probe: bool = field(default=False, compare=False)  # whether its layers alone are asked for, and nothing is tuned

    def example_of(self, batch: int) -> Feeds:
        """Return the example with so many samples, the first ones again and again, or else noise."""
        given = self.example or self.interface.noise(self.build.profile.at("opt"), seed=0)
        batched = {spec.name for spec in self.interface.inputs if spec.shape[:1] == (BATCH,)}
        return {**given, **{name: np.resize(given[name], (batch, *given[name].shape[1:])) for name in batched}}
