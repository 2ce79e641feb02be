"""The runtimes behind one protocol. A runtime is the module of its name, and the only one to import its library."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.params import Profile
from enginery.core.records import Layer, TensorSpec

Arrays = Mapping[str, NDArray[np.generic]]


class Session(Protocol):
    """A loaded engine."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]: ...

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        """Place the feeds where the engine reads them; each call of the result is one complete inference."""
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

    def compile(self, onnx: Path, folder: Path, profile: Profile) -> Sequence[Layer]:
        """Compile for this machine: leaves the engine's files in the folder, returns what it will execute."""
        ...

    def load(self, folder: Path, threads: int) -> Session:
        """Open what `compile` left; 0 threads means the runtime's own choice."""
        ...


def load_runtime(name: str) -> Runtime:
    module = f"{__name__}.{name}"
    try:
        return cast("Runtime", importlib.import_module(module))
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise EngineryError(f"runtime: {name} is not a runtime of this version of Enginery") from None
