"""Running an engine on a GPU: buffers that are allocated once, pinned host memory, one stream, graphs, device clocks.

What differs between runtimes is only the executor in the middle, which reads and writes addresses on a stream.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.records import TensorSpec
from enginery.gpu.cuda import Buffer, Graph, Pinned, Stream

Arrays = Mapping[str, NDArray[np.generic]]
Shape = tuple[int, ...]
Memory = TypeVar("Memory", Buffer, Pinned)


class Executor(Protocol):
    replays: bool  # by itself

    def place(self, addresses: Mapping[str, int], shapes: Mapping[str, Shape]) -> Mapping[str, Shape]:
        """Take the tensors' places and the inputs' shapes; return the shapes of the outputs."""
        ...

    def enqueue(self, stream: int) -> None: ...

    def close(self) -> None: ...


class DeviceSession:
    def __init__(
        self,
        stream: Stream,
        executor: Executor,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        largest_batch: int,
        replay: bool,
    ) -> None:
        """`replay` captures each new shape into a graph, and launches that."""
        self.replays = replay or executor.replays
        self._stream, self._executor, self._replay = stream, executor, replay
        self._outputs = {spec.name: spec for spec in outputs}
        self._shapes: Mapping[str, Shape] = {}
        self._graph: Graph | None = None
        self._resources = ExitStack()
        with ExitStack() as undone:  # closes what was opened, if the rest cannot be
            undone.callback(self.close)
            self._resources.callback(stream.close)
            self._resources.callback(executor.close)
            sizes = {spec.name: _bytes(spec, largest_batch) for spec in (*inputs, *outputs)}
            self._buffers = {name: self._keep(Buffer(size)) for name, size in sizes.items()}
            self._hosts = {name: self._keep(Pinned(size)) for name, size in sizes.items()}
            self._resources.callback(self._drop_graph)
            undone.pop_all()

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        for name, array in feeds.items():
            self._hosts[name].view(array.dtype, array.shape)[...] = array
        outputs = self._fit(feeds)
        self._feed(self._hosts, feeds)
        for name, array in outputs.items():
            self._stream.poison(self._buffers[name], array.nbytes)
        self._launch()
        self._fetch(outputs)
        self._stream.synchronize()
        return {name: array.copy() for name, array in outputs.items()}

    def bind(self, feeds: Arrays) -> Callable[[], float]:
        """One call is one inference, copies included; it returns the seconds between them, by the device's clock."""
        hosts = {name: self._keep(Pinned.holding(array)) for name, array in feeds.items()}

        def call() -> float:
            outputs = self._fit(feeds)
            self._feed(hosts, feeds)
            self._stream.start_clock()
            self._launch()
            self._stream.stop_clock()
            self._fetch(outputs)
            self._stream.synchronize()
            return self._stream.clocked_seconds()

        return call

    def close(self) -> None:
        self._resources.close()

    def _keep(self, memory: Memory) -> Memory:
        self._resources.callback(memory.close)
        return memory

    def _fit(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        """Make the engine ready for these shapes; returns where the outputs will arrive."""
        shapes = {name: array.shape for name, array in feeds.items()}
        if shapes != self._shapes:
            self._drop_graph()
            self._shapes = {}  # until all of this has worked
            addresses = {name: buffer.address for name, buffer in self._buffers.items()}
            announced = self._executor.place(addresses, shapes)
            (batch,) = {shape[0] for shape in shapes.values()}
            self._require_expected(announced, batch)
            self._arrivals = {
                name: self._hosts[name].view(np.dtype(spec.dtype), announced[name])
                for name, spec in self._outputs.items()
            }
            if self.replays:
                self._executor.enqueue(self._stream.handle)  # what is done only once per shape must not be captured
                self._stream.synchronize()
            if self._replay:
                self._graph = self._stream.capture(lambda: self._executor.enqueue(self._stream.handle))
            self._shapes = shapes
        return self._arrivals

    def _feed(self, hosts: Mapping[str, Pinned], feeds: Arrays) -> None:
        for name, array in feeds.items():
            self._stream.copy_in(hosts[name], self._buffers[name], array.nbytes)

    def _launch(self) -> None:
        if self._graph:
            self._stream.launch(self._graph)
        else:
            self._executor.enqueue(self._stream.handle)

    def _fetch(self, outputs: Arrays) -> None:
        for name, array in outputs.items():
            self._stream.copy_out(self._buffers[name], self._hosts[name], array.nbytes)

    def _require_expected(self, announced: Mapping[str, Shape], batch: int) -> None:
        """A larger output than the buffer was made for would be written over what lies behind it."""
        for name, spec in self._outputs.items():
            expected = spec.at_batch(batch)
            if announced.get(name) != expected:
                raise EngineryError(
                    f"output {name} would have shape {announced.get(name)} at batch {batch}, and {expected} was "
                    "recorded when the engine was built: run `dvc repro` to build it again"
                )

    def _drop_graph(self) -> None:
        if self._graph:
            self._graph.close()
            self._graph = None


def _bytes(spec: TensorSpec, batch: int) -> int:
    return math.prod(spec.at_batch(batch)) * np.dtype(spec.dtype).itemsize
