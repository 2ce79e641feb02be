"""What ONNX Runtime's CUDA provider needs: settings for the graph at hand, and a session for each shape."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import GraphProto, TensorProto, load_model

from enginery.core.errors import EngineryError
from enginery.engine.gpu.session import Growing, Shape
from enginery.engine.runtimes import Arrays
from enginery.graph.interface import Blueprint, Interface

CHANNELS_LAST = {"prefer_nhwc": "1"}  # the layout of NVIDIA's kernels, which are up to twice as fast in it
FUSED_BIASES = {"fuse_conv_bias": "1"}  # by default separate kernels add the biases, in up to a third of all the time
POOLING = {"GlobalAveragePool", "GlobalMaxPool", "ReduceMean", "ReduceMax"}
MOST_SHAPES = 8  # that have a session at a time, each with the weights in the memory of the GPU


def require_known_sizes(blueprint: Blueprint) -> None:
    """Refuse an output of unknown size: a GPU's memory is bound to it, and ONNX Runtime does not say how much."""
    sizes = [(spec.name, axis, size) for spec in blueprint.interface.outputs for axis, size in enumerate(spec.shape)]
    known = {size for spec in blueprint.interface.inputs for size in spec.shape}
    for name, axis, size in sizes:
        if isinstance(size, str) and size not in known:
            raise EngineryError(
                f"ONNX Runtime on a GPU must be told how large output {name} is, and its size '{size}' at axis {axis} "
                "is known from a run alone: let only the batch vary in build.profile, or take TensorRT"
            )


def convolutions(model: Path) -> dict[str, str]:
    """Return the provider options that make the convolutions of this graph fast: see docs/measurements.md."""
    graph = load_model(model, load_external_data=False).graph
    if not _suits_channels_last(graph):
        return {}
    halves = any(tensor.data_type == TensorProto.FLOAT16 for tensor in graph.initializer)
    return CHANNELS_LAST if halves else CHANNELS_LAST | FUSED_BIASES


def _suits_channels_last(graph: GraphProto) -> bool:
    """Tell whether the provider takes channels last and is right.

    It refuses them where weights are quantized, since it does not lay them out anew. With them, MobileNetV3 was off by
    0.15 in float32, ResNet by nothing. Which operator is to blame is not known, so what ResNet has not rules them out:
    convolutions in groups, and those of pooled images.
    """
    pooled = {name for node in graph.node if node.op_type in POOLING for name in node.output}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    in_groups = any(each.name == "group" and each.i > 1 for node in convolutions for each in node.attribute)
    of_pooled = any(node.input[0] in pooled for node in convolutions)
    return not (in_groups or of_pooled or any(node.op_type == "DequantizeLinear" for node in graph.node))


class Executor:
    """Runs a graph between the copies of a stream, without waiting for its own work.

    Each shape has a session of its own. One session would look for the kernels of convolutions anew whenever the shape
    changes, for up to two seconds, and replay CUDA graphs that it captured before with kernels that are gone.
    """

    def __init__(self, first: Any, another: Callable[[], Any], interface: Interface, replays: bool) -> None:
        self.replays = replays
        self._first, self._another, self._interface = first, another, interface
        self._sessions: dict[tuple[int, ...], Any] = {}  # by sizes, the last used one at the end
        self._shapes: dict[str, Shape] = {}

    def announce(self, shapes: Mapping[str, Shape], values: Arrays) -> dict[str, Shape]:
        produced = {spec.name: spec.at(self._interface.sizes(shapes)) for spec in self._interface.outputs}
        self._shapes = {**shapes, **produced}
        return produced

    def place(self, addresses: Mapping[str, int]) -> None:
        import onnxruntime

        self._session = self._session_at(tuple(self._interface.sizes(self._shapes).values()))
        self._options, self._binding = onnxruntime.RunOptions(), self._session.io_binding()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
        places = [(self._binding.bind_input, spec) for spec in self._interface.inputs]
        for bind, spec in places + [(self._binding.bind_output, spec) for spec in self._interface.outputs]:
            bind(spec.name, "cuda", 0, np.dtype(spec.dtype), self._shapes[spec.name], addresses[spec.name])

    def _session_at(self, sizes: tuple[int, ...]) -> Any:
        """Return the session of these sizes, and let go of the one that was not used for longest if there are many."""
        session = self._sessions.pop(sizes, None) or self._first or self._another()
        self._first = None
        while len(self._sessions) >= MOST_SHAPES:
            del self._sessions[next(iter(self._sessions))]
        self._sessions[sizes] = session
        return session

    def let_grow(self, outputs: Mapping[str, Growing]) -> None:
        """Do nothing: `require_known_sizes` refuses such outputs."""

    def enqueue(self, stream: int) -> None:
        try:
            self._session.run_with_iobinding(self._binding, self._options)
        except Exception as error:  # ONNX Runtime's own exceptions share no base class
            raise EngineryError(f"ONNX Runtime cannot run the engine: {str(error).strip().splitlines()[0]}") from None

    def close(self) -> None:
        self._first = self._session = self._binding = None
        self._sessions.clear()
