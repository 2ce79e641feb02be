"""Open an engine and run it. Its files and its target are checked before anything is loaded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import InferenceParams
from enginewright.core.text import in_one_line
from enginewright.data.feeds import Run
from enginewright.engine.machine import Machine, require_fits
from enginewright.engine.record import EngineRecord, read_engine, require_weights
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.engine.runtimes.runtime import Arrays, Session

NOT_RUN = "the engine cannot run these inputs, or is another one than its engine.json describes:"


def open_engine(folder: Path, machine: Machine | None, inference: InferenceParams) -> "Engine":
    """Open an engine. This machine is described anew if `machine` is None, which takes a moment."""
    return open_engines(folder, machine, inference, requests=1)[0]


def open_engines(folder: Path, machine: Machine | None, inference: InferenceParams, requests: int) -> list["Engine"]:
    """Open one engine for several requests side by side. They share its weights where the runtime allows it."""
    record = read_engine(folder)
    if machine is None:
        name = record.target.runtime
        if missing := load_runtime(name).missing():
            raise EnginewrightError(f"{folder} runs on {name}, but {missing}")
        machine = describe_machine(name)
    require_fits(record.target, machine, folder)
    require_weights(record, folder)
    runtime = load_runtime(machine.runtime)
    with _in_a_sentence(f"{folder}: {machine.runtime} cannot open the engine:"):
        sessions = runtime.load(folder, record.blueprint, inference.on(machine.cores), requests)
    return [Engine(record, session) for session in sessions]


@contextmanager
def running_engine(folder: Path, threads: int, inference: InferenceParams) -> Iterator[Run]:
    """Open an engine on a machine like the one that it was built for, as that machine says of itself."""
    with open_engine(folder, None, inference.model_copy(update={"threads": threads or inference.threads})) as engine:
        yield engine.run


@contextmanager
def _in_a_sentence(what: str) -> Iterator[None]:
    try:
        yield
    except (EnginewrightError, OSError, MemoryError):
        raise
    except Exception as error:  # each library raises errors of its own
        raise EnginewrightError(f"{what} {in_one_line(error)}") from error


class Engine(AbstractContextManager["Engine"]):
    """An open engine. It checks each input first, so that an error names the tensor and the limit."""

    def __init__(self, record: EngineRecord, session: Session) -> None:
        self.record, self._session = record, session
        self.inputs, self.outputs = record.interface.inputs, record.interface.outputs

    @property
    def replays(self) -> bool:
        """Tell whether its work is launched as one CUDA graph. Whether it can be is known after the first run."""
        return self._session.replays

    def run(self, feeds: Arrays | NDArray[np.generic]) -> dict[str, NDArray[np.generic]]:
        """Return the outputs by name, for inputs by name with the batch first, or for the array of the only input."""
        given = {self.inputs[0].name: feeds} if isinstance(feeds, np.ndarray) and len(self.inputs) == 1 else feeds
        arrays = self._require_fitting(given)
        with _in_a_sentence(NOT_RUN):
            return self._session.run(arrays)

    def bind(self, feeds: Arrays) -> Callable[[], object]:
        """Place inputs where the engine reads them, and return a call that runs one inference on them."""
        self._require_fitting(feeds)
        with _in_a_sentence(NOT_RUN):
            return self._session.bind(feeds)

    def close(self) -> None:
        self._session.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _require_fitting(self, feeds: object) -> Arrays:
        specs, ranges = {spec.name: spec for spec in self.inputs}, self.record.profile.ranges
        if not isinstance(feeds, Mapping):
            needed = f"a dictionary of NumPy arrays by the names of its inputs, {', '.join(specs)}"
            alone = ", or the array alone" if len(specs) == 1 else ""
            raise EnginewrightError(f"the engine takes {needed}{alone}, but was given a {type(feeds).__name__}")
        if feeds.keys() != specs.keys():
            named = ", ".join(map(str, feeds)) or "nothing"
            raise EnginewrightError(f"the engine takes {', '.join(specs)}, but was given {named}")
        given: dict[str, tuple[str, int]] = {}  # by axis: the first input that has the axis, and the size there
        for name, array in feeds.items():
            spec = specs[name]
            if not isinstance(array, np.ndarray):
                kind = type(array).__name__
                raise EnginewrightError(f"input {name} is a {kind} and must be an array of {spec.dtype}")
            if array.dtype != spec.dtype:
                raise EnginewrightError(f"input {name} is {array.dtype} and must be {spec.dtype}")
            if len(array.shape) != len(spec.shape) or not all(map(self._fits, array.shape, spec.shape)):
                needed = ", ".join(str(ranges.get(str(size), size)) for size in spec.shape)
                raise EnginewrightError(f"input {name} has shape {array.shape}, and the engine takes ({needed})")
            if spec.values and not all(map(self._fits, array.ravel().tolist(), spec.values)):
                needed = ", ".join(str(ranges[axis]) for axis in spec.values)
                raise EnginewrightError(f"input {name} holds {array.tolist()}, and the engine takes ({needed})")
            found = *array.shape, *(array.ravel().tolist() if spec.values else ())
            for axis, size in zip((*spec.shape, *spec.values), found, strict=True):
                first, first_size = given.setdefault(axis, (name, size)) if isinstance(axis, str) else (name, size)
                if size != first_size:
                    raise EnginewrightError(f"input {name} has {axis} {size}, and input {first} has {first_size}")
        return feeds

    def _fits(self, size: int, allowed: int | str) -> bool:
        return size == allowed if isinstance(allowed, int) else size in self.record.profile.ranges[allowed]
