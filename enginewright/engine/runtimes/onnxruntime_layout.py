"""Choose how ONNX Runtime's CUDA provider lays out images: each layout is tried on the GPU, as TensorRT tries kernels.

No rule would do: with channels last and fused biases, fp16 of ResNet-50 was 1.6 times as fast on an H200, and fp32 of
EfficientNet-B0 0.5 times (docs/measurements.md).
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, ModelProto, load_model, save_model

from enginewright.core.errors import EnginewrightError
from enginewright.data.feeds import BATCH
from enginewright.engine.gpu.session import DeviceSession
from enginewright.engine.runtimes import Arrays
from enginewright.graph.interface import Blueprint

Layout = Mapping[str, str]  # options of the provider
CHANNELS_FIRST: Layout = {}
CHANNELS_LAST: Layout = {"prefer_nhwc": "1"}
LAST_WITH_FUSED_BIASES: Layout = {**CHANNELS_LAST, "fuse_conv_bias": "1"}  # with channels first, answers were wrong
LAYOUTS = (CHANNELS_FIRST, CHANNELS_LAST, LAST_WITH_FUSED_BIASES)
CONVOLUTIONS = {"Conv", "ConvTranspose"}
OPTION = "CUDAExecutionProvider."  # begins the names by which an engine's metadata hold its layout
WARM_UP, CALLS = 10, 50
LEAST_GAIN = 0.97  # is how much of the time of channels first another layout may take: a smaller gain is noise
MOST_DIFFERENCE = 0.1  # is allowed to the answers of channels first: a trained network has less by TF32 and halves


class Trial(NamedTuple):
    seconds: float
    answers: Arrays


def has_choice(graph: GraphProto) -> bool:
    """Tell whether there are images to lay out. The provider refuses it for weights that are quantized."""
    read = {name for node in graph.node if node.op_type in CONVOLUTIONS for name in node.input}
    rounded = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    return bool(read) and read.isdisjoint(rounded)


def fastest_layout(try_out: Callable[[Layout], Trial]) -> Layout:
    """Return the layout that takes the least time, of those that the provider takes and that answer as the first."""
    trials: list[tuple[Layout, Trial]] = []
    for layout in LAYOUTS:
        try:
            trials.append((layout, try_out(layout)))
        except EnginewrightError as error:
            print(f"ONNX Runtime cannot be tried with {layout or 'channels first'}: {error}", file=sys.stderr)
            if not trials:  # there is nothing to compare with
                return CHANNELS_FIRST
    (chosen, first), *others = trials
    least = first.seconds * LEAST_GAIN
    for layout, trial in others:
        if trial.seconds < least and _agree(trial.answers, first.answers):
            chosen, least = layout, trial.seconds
    return chosen


def timed(session: DeviceSession, blueprint: Blueprint) -> Trial:
    """Call a session with as many samples as the engine is optimized for."""
    feeds = _feeds(blueprint)
    answers, call = session.run(feeds), session.bind(feeds)
    seconds = [call() for _ in range(WARM_UP + CALLS)]
    return Trial(median(seconds[WARM_UP:]), answers)


def write_layout(engine: Path, layout: Layout) -> None:
    """Note in an engine how it must be opened."""
    model = load_model(engine, load_external_data=False)
    others = [entry for entry in model.metadata_props if not entry.key.startswith(OPTION)]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    for name, value in layout.items():
        model.metadata_props.add(key=OPTION + name, value=value)
    save_model(model, engine)


def layout_of(model: ModelProto) -> Layout:
    """Return the layout that is noted in an engine. Other options of the provider are not taken from a file."""
    noted = {entry.key: entry.value for entry in model.metadata_props if entry.key.startswith(OPTION)}
    return next((one for one in LAYOUTS if {OPTION + name: value for name, value in one.items()} == noted), LAYOUTS[0])


def _feeds(blueprint: Blueprint) -> dict[str, NDArray[Any]]:
    """Return the example, or else noise, with as many samples as the engine is optimized for."""
    example, profile, interface = blueprint.example, blueprint.build.profile, blueprint.interface
    if not example:
        return interface.noise(profile.at("opt"), seed=0)
    batched = {spec.name for spec in interface.inputs if spec.shape and spec.shape[0] == BATCH}
    sizes = {name: (profile.batch.opt if name in batched else len(each)) for name, each in example.items()}
    return {name: np.resize(each, (sizes[name], *each.shape[1:])) for name, each in example.items()}


def _agree(found: Arrays, wanted: Arrays) -> bool:
    """Tell whether all answers to all samples are about what they were with channels first, and finite."""
    return all(_alike(np.atleast_1d(found[name]), np.atleast_1d(values)) for name, values in wanted.items())


def _alike(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Compare the answers to each sample by how much its numbers differ among each other, or those of most samples."""
    if not np.isfinite(wanted).all():
        return False
    rows = wanted.reshape(len(wanted), -1).astype(np.float64)
    spreads = np.linalg.norm(rows - rows.mean(axis=1 if rows.shape[1] > 1 else 0, keepdims=True), axis=1)
    differences = np.linalg.norm(found.reshape(rows.shape) - rows, axis=1)
    return bool((differences <= MOST_DIFFERENCE * np.maximum(spreads, np.median(spreads))).all())
