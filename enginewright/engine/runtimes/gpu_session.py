"""Run an engine on a GPU: buffers that are allocated once, pinned host memory, one stream, graphs, device clocks. Only
the executor differs between runtimes: it reads and writes addresses on a stream."""

import math
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from enginewright.core.errors import EnginewrightError
from enginewright.engine.gpu import Buffer, Event, Graph, Pinned, Stream
from enginewright.engine.runtimes.runtime import Arrays
from enginewright.graph.interface import Blueprint, TensorSpec

Shape = tuple[int, ...]
Kept = TypeVar("Kept", "Growing", Buffer, Event, Pinned)
NOT_KNOWN = -1  # a size of an output that follows from the values of the inputs


class Executor(Protocol):
    replays: bool  # whether it replays CUDA graphs by itself

    def announce(self, shapes: Mapping[str, Shape], values: Arrays) -> Mapping[str, Shape]:
        """Accept the shapes of the inputs, and return those of the outputs, with -1 for what only a run can tell. The
        values are of the inputs that hold sizes: arrays in the host's memory, which stay where they are."""

    def place(self, addresses: Mapping[str, int]) -> None: ...

    def let_grow(self, outputs: Mapping[str, "Growing"]) -> None:
        """Place these outputs where there is room for them, once a run knows how large they are."""

    def enqueue(self, stream: int) -> None: ...

    def close(self) -> None: ...


class Growing:
    """The memory of an output that is as large as the values of the inputs make it."""

    def __init__(self) -> None:
        self.shape: Shape = ()
        self.size = 0
        self._held = ExitStack()

    def reserve(self, size: int) -> int:
        """Return the address of as many bytes, or more, on the device. What was there may be lost."""
        size = max(size, 1)  # TensorRT takes no null pointer for an empty output either
        if size > self.size:
            self.close()
            self.device = self._held.enter_context(closing(Buffer(size)))
            self.host = self._held.enter_context(closing(Pinned(size)))
            self.size = size
        return self.device.address

    def close(self) -> None:
        self._held.close()
        self.size = 0


class DeviceSession:
    def __init__(self, stream: Stream, executor: Executor, blueprint: Blueprint, replay: bool) -> None:
        """Allocate memory for the largest sizes. With `replay`, the work of each shape is captured into a graph."""
        self.replays = replay or executor.replays
        self._stream, self._executor, self._replay = stream, executor, replay
        self._interface, largest = blueprint.interface, blueprint.build.profile.at("max")
        self._shapes: Mapping[str, Shape] = {}
        self._graph: Graph | None = None
        with ExitStack() as self._resources:
            self._resources.callback(stream.close)
            self._resources.callback(executor.close)
            widest = {spec.name: spec.at(largest) for spec in self._interface.inputs}
            held = self._interface.holding(largest).items()
            self._values = {name: self._keep(Pinned.holding(each)).view(each.dtype, each.shape) for name, each in held}
            shapes = widest | self._announced(widest)
            self._growing = {name: self._keep(Growing()) for name, shape in shapes.items() if NOT_KNOWN in shape}
            if self._growing and self.replays:
                self._replay_no_more(f"the values of its inputs decide how large {', '.join(self._growing)} will be")
            specs = (*self._interface.inputs, *self._interface.outputs)
            specs = tuple(spec for spec in specs if spec.name not in self._growing.keys() | self._values.keys())
            self._room = {spec.name: _bytes(spec, shapes[spec.name]) for spec in specs}
            unread = shapes.keys() - {*self._room, *self._growing, *self._values}  # of numbers of 4 bytes at most
            room = self._room | {name: 4 * math.prod(shapes[name]) for name in unread}
            self._buffers = {name: self._keep(Buffer(size)) for name, size in room.items()}
            self._hosts = {name: self._keep(Pinned(size)) for name, size in self._room.items()}
            self._resources.callback(self._drop_graph)
            self._resources = self._resources.pop_all()  # all is well: they stay until `close`

    def run(self, feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        for name, array in feeds.items():
            if name in self._hosts:
                self._hosts[name].view(array.dtype, array.shape)[...] = array
        outputs = self._prepare(self._hosts, feeds)
        for name, array in outputs.items():
            self._stream.poison(self._buffers[name], array.nbytes)
        for grown in self._growing.values():
            if grown.size:
                self._stream.poison(grown.device, grown.size)
        self._launch()
        arriving = self._copy_out(outputs)
        self._stream.synchronize()
        return {name: array.copy() for name, array in arriving.items()}

    def bind(self, feeds: Arrays) -> Callable[[], float]:
        """Return a call that runs one inference with its copies, and returns the seconds between them on the device."""
        hosts = {name: self._keep(Pinned.holding(array)) for name, array in feeds.items()}
        before, after = self._keep(Event()), self._keep(Event())

        def call() -> float:
            outputs = self._prepare(hosts, feeds)
            self._stream.mark(before)
            self._launch()
            self._stream.mark(after)
            self._copy_out(outputs)
            self._stream.synchronize()
            return after.seconds_after(before)

        return call

    def close(self) -> None:
        self._resources.close()

    def _keep(self, resource: Kept) -> Kept:
        return self._resources.enter_context(closing(resource))

    def _prepare(self, hosts: Mapping[str, Pinned], feeds: Arrays) -> dict[str, NDArray[np.generic]]:
        """Copy the inputs, prepare for their shapes, and return the arrays that the outputs will arrive in. The copies
        come first: a new shape runs once here, and must not compute on arbitrary memory."""
        for name, array in feeds.items():
            if name in self._buffers:
                self._stream.copy_in(hosts[name], self._buffers[name], array.nbytes)
        shapes = {name: array.shape for name, array in feeds.items()}
        if shapes != self._shapes or not all(np.array_equal(held, feeds[name]) for name, held in self._values.items()):
            self._drop_graph()
            self._shapes = {}  # so that a failure below makes the next call start anew
            for name, held in self._values.items():
                held[...] = feeds[name]
            announced = self._announced(shapes)
            for spec in self._interface.outputs:  # a larger one would be written over the memory behind its buffer
                if spec.name in self._room and _bytes(spec, announced[spec.name]) > self._room[spec.name]:
                    raise EnginewrightError(
                        f"output {spec.name} would have shape {announced[spec.name]}, which is more than at the "
                        "largest sizes of build.profile, that memory was taken for: set min, opt and max alike there"
                    )
            self._executor.place({name: buffer.address for name, buffer in self._buffers.items()})
            self._executor.let_grow(self._growing)
            fixed = [spec for spec in self._interface.outputs if spec.name not in self._growing]
            self._arrivals = {s.name: self._hosts[s.name].view(np.dtype(s.dtype), announced[s.name]) for s in fixed}
            if self._replay:
                self._launch()  # work that is done once per shape must not be captured
                self._stream.synchronize()
                try:
                    self._graph = self._stream.capture(lambda: self._executor.enqueue(self._stream.handle))
                except EnginewrightError as error:  # some operations cannot be captured: trtexec does without, too
                    self._replay_no_more(error)
            self._shapes = shapes
        return self._arrivals

    def _replay_no_more(self, why: object) -> None:
        print(f"the engine runs without a CUDA graph (inference.cuda_graph): {why}", file=sys.stderr)
        self._replay = self.replays = False

    def _launch(self) -> None:
        if self._graph:
            self._stream.launch(self._graph)
        else:
            self._executor.enqueue(self._stream.handle)

    def _copy_out(self, outputs: Arrays) -> Arrays:
        """Return the arrays that all outputs arrive in, in the order of the interface."""
        for name, array in outputs.items():
            self._stream.copy_out(self._buffers[name], self._hosts[name], array.nbytes)
        if not self._growing:
            return outputs
        arriving = dict(outputs)
        for spec in self._interface.outputs:
            if grown := self._growing.get(spec.name):
                self._require_fitting(spec, grown.shape, self._interface.sizes(self._shapes))
                self._stream.copy_out(grown.device, grown.host, _bytes(spec, grown.shape))
                arriving[spec.name] = grown.host.view(np.dtype(spec.dtype), grown.shape)
        return {spec.name: arriving[spec.name] for spec in self._interface.outputs}

    def _announced(self, shapes: Mapping[str, Shape]) -> dict[str, Shape]:
        """Return the shapes of the outputs that the executor announces, and refuse any that the interface forbids."""
        announced, sizes = dict(self._executor.announce(shapes, self._values)), self._interface.sizes(shapes)
        for spec in self._interface.outputs:
            self._require_fitting(spec, announced.get(spec.name), sizes)
        return announced

    def _require_fitting(self, spec: TensorSpec, found: Shape | None, sizes: Mapping[str, int]) -> None:
        """Refuse a shape that the interface forbids, or whose batch only a run can tell."""
        if found is not None and spec.fits(tuple(max(size, 0) for size in found), sizes):
            return
        if found and found[0] == NOT_KNOWN:
            raise EnginewrightError(
                f"output {spec.name} has the shape {found}: the values of the inputs may decide any size but the "
                "first, which is the batch"
            )
        where = ", ".join(f"{axis} {size}" for axis, size in sizes.items())
        expected = tuple(sizes.get(str(size), size) for size in spec.shape)
        raise EnginewrightError(
            f"output {spec.name} would have shape {found} at {where}, and {expected} was "
            "recorded when the engine was built: run `dvc repro` to build it again"
        )

    def _drop_graph(self) -> None:
        if self._graph:
            self._graph.close()
            self._graph = None


def _bytes(spec: TensorSpec, shape: Shape) -> int:
    return math.prod(shape) * np.dtype(spec.dtype).itemsize
