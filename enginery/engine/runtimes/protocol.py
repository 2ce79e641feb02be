"""What every runtime answers to."""

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
