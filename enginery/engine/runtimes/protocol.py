"""The protocol of the runtimes, and of an engine that one of them has loaded."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from enginery.core.params.inference import InferenceParams
from enginery.engine.record import Layer, LayerTime
from enginery.graph.interface import Blueprint

Arrays = Mapping[str, NDArray[np.generic]]


class Session(Protocol):
    """A loaded engine, for one inference at a time."""

    replays: bool  # whether its kernels are launched as one CUDA graph

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]: ...

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        """Place the feeds where the engine reads them; each call of the result is one complete inference.

        On a GPU that includes the copies to it and back, and the call returns the seconds without them.
        """
        ...

    def close(self) -> None: ...


class Runtime(Protocol):
    """A library that builds engines and runs them."""

    def missing(self) -> str | None:
        """Return why this runtime cannot be used here and what to install, or None if it can be used."""
        ...

    def version(self) -> str: ...

    def device(self) -> str:
        """Return the device that engines run on here: 'cuda' or 'cpu'."""
        ...

    def compile(self, onnx: Path, blueprint: Blueprint, folder: Path) -> Sequence[Layer]:
        """Write the engine's files into the folder. Return its layers as it will execute them, if they can be known."""
        ...

    def load(self, folder: Path, blueprint: Blueprint, inference: InferenceParams, requests: int) -> Sequence[Session]:
        """Open what `compile` wrote for the same blueprint, as many sessions as `requests`, to be used side by side."""
        ...

    def trace(
        self, folder: Path, blueprint: Blueprint, inference: InferenceParams, feeds: Arrays, calls: int
    ) -> list[LayerTime]:
        """Return the layers with their median times over the calls.

        This opens the engine anew with profiling, which slows it down and which `load` never turns on.
        """
        ...
