"""Name what each runtime must offer, and keep what all of them share."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from statistics import median
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from enginewright.core.params.build import BuildParams, InferenceParams
from enginewright.engine.record import UNKNOWN, Layer, LayerTime
from enginewright.graph.interface import Blueprint

Arrays = Mapping[str, NDArray[np.generic]]
CallTimes = Sequence[tuple[str, float]]  # the name and the milliseconds of each layer, in the order of execution
WARM_UP = 3  # calls before those that are traced


class Compiled(NamedTuple):
    layers: Sequence[Layer]  # as the engine will execute them, if they can be known
    build: BuildParams  # as it was built
    remark: str | None = None  # why that is not as it was asked for


class Session(Protocol):
    """A loaded engine, for one inference at a time."""

    replays: bool  # whether its kernels are launched as one CUDA graph

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]: ...

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        """Place the feeds where the engine reads them; each call of the result is one complete inference. On a GPU that
        includes the copies to it and back, and the call returns the seconds without them."""

    def close(self) -> None: ...


class Runtime(Protocol):
    """A library that builds engines and runs them, on the device 'cuda' or 'cpu'."""

    def missing(self) -> str | None:
        """Return why this runtime cannot be used here and what to install, or None if it can be used."""

    def version(self) -> str: ...

    def device(self) -> str: ...

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Compiled:
        """Write the engine's files into the folder."""

    def load(self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int) -> Sequence[Session]:
        """Open what `compile` wrote for the same blueprint, as many sessions as `requests`, to be used side by side."""

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Return the layers with their median times. Profiling slows an engine down, so it is opened anew for that."""


def median_times(layers: Sequence[Layer], calls: Sequence[CallTimes]) -> list[LayerTime]:
    """Return the layers with the medians of their times. Layers that share a name are matched to times in order."""

    def numbered(names: Iterable[str]) -> list[tuple[str, int]]:
        """Number the names that are alike, from 0 on."""
        counts: defaultdict[str, Iterator[int]] = defaultdict(count)
        return [(name, next(counts[name])) for name in names]

    times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for call in calls:
        for key, (_, milliseconds) in zip(numbered(name for name, _ in call), call, strict=True):
            times[key].append(milliseconds)
    known = dict(zip(numbered(layer.name for layer in layers), layers, strict=True))
    for name, number in [key for key in times if key not in known]:  # nothing is known of these but their times
        known[name, number] = Layer(name=name, kind=UNKNOWN, precision=UNKNOWN, computes=False)
    return [
        LayerTime(**layer.model_dump(), milliseconds=round(median(times[key]), 6) if key in times else 0)
        for key, layer in known.items()
    ]
