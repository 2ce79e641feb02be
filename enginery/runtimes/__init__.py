"""The runtimes behind one protocol. A runtime is the file of its name, and the only one to import its library."""

import importlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from enginery.core.params import InferenceParams
from enginery.core.records import Blueprint, Layer, LayerTime

Arrays = Mapping[str, NDArray[np.generic]]
Told = Sequence[tuple[str, float]]  # of one call: each layer's name and milliseconds, in the order of execution
TENSORRT = ("tensorrt", "tensorrt_rtx")
WARM_UP = 3  # calls before those that are traced
UNKNOWN = "unknown"


class Session(Protocol):
    """A loaded engine, for one inference at a time."""

    replays: bool  # its kernels are launched as one CUDA graph

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]: ...

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        """Place the feeds where the engine reads them; each call of the result is one complete inference.

        On a GPU that includes the copies to it and back, and the call returns the seconds without them.
        """
        ...

    def close(self) -> None: ...


class Runtime(Protocol):
    def missing(self) -> str | None:
        """Why this runtime cannot be used here and what to install, or None."""
        ...

    def version(self) -> str: ...

    def device(self) -> str:
        """'cuda' or 'cpu'."""
        ...

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        """Leave the engine's files in the folder; returns what it will execute, if that can be known here."""
        ...

    def load(self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int) -> Sequence[Session]:
        """Open what `compile` left of the same blueprint, for so many inferences side by side."""
        ...

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """What each layer takes, over so many calls. It opens the engine by itself, in a way that `load` never does."""
        ...


def timed(layers: Sequence[Layer], calls: Sequence[Told]) -> list[LayerTime]:
    """The layers with their medians over the calls. Of layers that share a name, the first takes the first's times."""
    times: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for call in calls:
        for key, (_, milliseconds) in zip(_numbered(name for name, _ in call), call, strict=True):
            times[key].append(milliseconds)
    known = dict(zip(_numbered(layer.name for layer in layers), layers, strict=True))
    for name, number in [key for key in times if key not in known]:  # timed, and nothing else is known of it
        known[name, number] = Layer(name=name, kind=UNKNOWN, precision=UNKNOWN, computes=False)
    return [
        LayerTime(**layer.model_dump(), milliseconds=round(median(times[key]), 6) if key in times else 0)
        for key, layer in known.items()
    ]


def _numbered(names: Iterable[str]) -> list[tuple[str, int]]:
    """Each name with how often it came before."""
    seen: Counter[str] = Counter()
    numbered = []
    for name in names:
        numbered.append((name, seen[name]))
        seen[name] += 1
    return numbered


def load_runtime(name: str) -> Runtime:
    if name in TENSORRT:  # one file for two libraries
        from enginery.runtimes.tensorrt import TensorRT

        return TensorRT(name)
    return cast("Runtime", importlib.import_module(f"{__name__}.{name}"))
