"""Run a plan of TensorRT, in the profile that is nearest to the shapes at hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.engine.gpu.session import Growing, Shape
from enginewright.engine.runtimes import Arrays
from enginewright.graph.interface import Blueprint


class Executor:
    """Runs a plan on the addresses and the stream of a DeviceSession."""

    def __init__(
        self,
        title: str,
        engine: Any,
        context: Any,
        blueprint: Blueprint,
        allocator: Any,
        log: Any,
        replays: bool,
        stream: int,
    ) -> None:
        self.replays = replays
        self._title, self._engine, self._context, self._log = title, engine, context, log
        self._blueprint = blueprint
        self._allocator, self._stream = allocator, stream

    def announce(self, shapes: Mapping[str, Shape], values: Arrays) -> dict[str, Shape]:
        self._log.lines.clear()
        profile = _nearest_profile(self._blueprint, shapes, values)
        if profile != self._context.active_optimization_profile:  # before the shapes, which it forgets
            set_profile(self._title, self._context, profile, self._stream, self._log)
        self.place({name: array.ctypes.data for name, array in values.items()})  # TensorRT reads these on the host
        for name, shape in shapes.items():
            if name not in values and not self._context.set_input_shape(name, shape):
                raise EnginewrightError(f"{self._title} refuses shape {shape} for input {name}: {self._log.reason()}")
        tensors = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        return {name: tuple(self._context.get_tensor_shape(name)) for name in tensors if name not in shapes}

    def place(self, addresses: Mapping[str, int]) -> None:
        for name, address in addresses.items():
            if not self._context.set_tensor_address(name, address):
                raise EnginewrightError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def let_grow(self, outputs: Mapping[str, Growing]) -> None:
        self._allocator.outputs = outputs
        for name in outputs:
            if not self._context.set_output_allocator(name, self._allocator):
                raise EnginewrightError(f"{self._title} refuses a buffer for {name}: {self._log.reason()}")

    def enqueue(self, stream: int) -> None:
        self._allocator.error = None
        if not self._context.execute_async_v3(stream):
            raise self._allocator.error or EnginewrightError(
                f"{self._title} cannot run the engine: {self._log.reason()}"
            )

    def close(self) -> None:
        self._context = self._engine = None  # the context must be freed before its engine


def set_profile(title: str, context: Any, number: int, stream: int, log: Any) -> None:
    if not context.set_optimization_profile_async(number, stream):
        raise EnginewrightError(f"{title} refuses optimization profile {number} of the engine: {log.reason()}")


def _nearest_profile(blueprint: Blueprint, shapes: Mapping[str, Shape], values: Arrays) -> int:
    """Return the profile that contains the shapes and is tuned for the nearest ones, by the sum of the differences: the
    rule of Triton. Return the first one if none does, so that TensorRT refuses the shapes in its own words."""
    distances, inputs = {}, blueprint.interface.inputs
    axes = [axis for spec in inputs for axis in (*spec.shape, *spec.values)]
    given = [size for spec in inputs for size in (*shapes[spec.name], *np.ravel(values.get(spec.name, ())))]
    sizes = [(axis, int(size)) for axis, size in zip(axes, given, strict=True) if isinstance(axis, str)]
    for number, profile in enumerate(blueprint.build.all_profiles):
        if all(size in profile.ranges[axis] for axis, size in sizes):
            distances[number] = sum(abs(size - profile.ranges[axis].opt) for axis, size in sizes)
    return min(distances, key=distances.__getitem__, default=0)
