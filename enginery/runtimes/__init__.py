"""The runtimes behind one protocol. A runtime is the file of its name, and the only one to import its library."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from enginery.core.params import BuildParams, InferenceParams
from enginery.core.records import Layer, TensorSpec

Arrays = Mapping[str, NDArray[np.generic]]
TENSORRT = ("tensorrt", "tensorrt_rtx")


class Compiled(NamedTuple):
    """What a compiler made: its tensors, and what it will execute, if that can be known here."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    layers: Sequence[Layer]


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

    def compile(self, onnx: Path, folder: Path, build: BuildParams) -> Compiled:
        """Leave the engine's files in the folder."""
        ...

    def load(self, folder: Path, build: BuildParams, inference: InferenceParams, requests: int) -> Sequence[Session]:
        """Open what `compile` left, which was told `build`, for so many inferences side by side."""
        ...


def load_runtime(name: str) -> Runtime:
    if name in TENSORRT:  # one file for two libraries
        from enginery.runtimes.tensorrt import TensorRT

        return TensorRT(name)
    return cast("Runtime", importlib.import_module(f"{__name__}.{name}"))
