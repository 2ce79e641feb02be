"""Choose how ONNX Runtime's CUDA provider lays out images: each layout is tried on the GPU, as TensorRT tries kernels.

No rule would do: with channels last and fused biases, fp16 of ResNet-50 was 1.6 times as fast on an H200, and that of
EfficientNet-B0 0.6 times (docs/measurements.md).
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, load_model, save_model

from enginery.engine.gpu.session import DeviceSession
from enginery.engine.runtimes import Arrays
from enginery.graph.interface import Blueprint

Layout = Mapping[str, str]  # options of the provider
CHANNELS_FIRST: Layout = {}
CHANNELS_LAST: Layout = {"prefer_nhwc": "1"}
FUSED_BIASES: Layout = {**CHANNELS_LAST, "fuse_conv_bias": "1"}  # with channels first, these gave wrong answers
CONVOLUTIONS = {"Conv", "ConvTranspose"}
OPTION = "CUDAExecutionProvider."  # begins the names by which an engine's metadata hold its layout
WARM_UP, CALLS = 10, 50
LEAST_GAIN = 0.97  # of the time of channels first: what is not faster by more is noise
MOST_DIFFERENCE = 0.1  # to the answers of channels first, relative to them: TF32 and halves leave less


class Trial(NamedTuple):
    seconds: float
    answers: Arrays


def lays_out(graph: GraphProto) -> bool:
    """Tell whether there is a choice. The provider lays out no weights that are quantized."""
    read = {name for node in graph.node if node.op_type in CONVOLUTIONS for name in node.input}
    rounded = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return bool(read) and read.isdisjoint(rounded)


def fastest_layout(try_out: Callable[[Layout], Trial]) -> Layout:
    """Return the layout that takes the least time, of those that the provider takes and that answer as the first."""
    first = try_out(CHANNELS_FIRST)
    chosen, seconds = CHANNELS_FIRST, first.seconds * LEAST_GAIN
    for layout in (CHANNELS_LAST, FUSED_BIASES):
        try:
            trial = try_out(layout)
        except Exception:  # it refuses some graphs, and ONNX Runtime's own exceptions share no base class
            continue
        if trial.seconds < seconds and _agree(trial.answers, first.answers):
            chosen, seconds = layout, trial.seconds
    return chosen


def timed(session: DeviceSession, blueprint: Blueprint) -> Trial:
    """Call a session at the size for which the engine is optimized."""
    feeds = blueprint.example or _noise(blueprint)
    answers, call = session.run(feeds), session.bind(feeds)
    seconds = [call() for _ in range(WARM_UP + CALLS)]
    return Trial(median(seconds[WARM_UP:]), answers)


def write_layout(engine: Path, layout: Layout) -> None:
    """Note in an engine how it must be opened."""
    model = load_model(engine, load_external_data=False)
    for name, value in layout.items():
        model.metadata_props.add(key=OPTION + name, value=value)
    save_model(model, engine)


def layout_of(model: ModelProto) -> Layout:
    options = {entry.key: entry.value for entry in model.metadata_props if entry.key.startswith(OPTION)}
    return {name.removeprefix(OPTION): value for name, value in options.items()}


def _noise(blueprint: Blueprint) -> dict[str, NDArray[np.generic]]:
    random = np.random.default_rng(0)
    zeros = blueprint.interface.zeros(blueprint.build.profile.at("opt"))
    floats = {name: random.standard_normal(array.shape) for name, array in zeros.items() if array.dtype.kind == "f"}
    return zeros | {name: values.astype(zeros[name].dtype) for name, values in floats.items()}


def _agree(found: Arrays, wanted: Arrays) -> bool:
    """Tell whether no output is far from what it was with channels first, or not a number."""
    pairs = [(found[name].astype(np.float64), values.astype(np.float64)) for name, values in wanted.items()]
    return all(np.linalg.norm(got - exact) <= MOST_DIFFERENCE * np.linalg.norm(exact) for got, exact in pairs)
