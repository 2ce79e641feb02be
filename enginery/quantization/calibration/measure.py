"""Measure every activation of a graph while it runs on samples."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import onnx
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.data.feeds import Feeds
from enginery.graph.as_written import open_as_written
from enginery.quantization.calibration.histogram import Histogram

Activations = dict[str, NDArray[np.float32]]
MEASURED = {"float32": onnx.TensorProto.FLOAT, "float16": onnx.TensorProto.FLOAT16}


def measure(model: onnx.ModelProto, batches: Iterable[Feeds], bins: int) -> dict[str, Histogram]:
    """Return a histogram of each activation in float32 or float16, without keeping a batch once it is counted."""
    histograms: dict[str, Histogram] = {}
    for activations in _activations(model, batches):
        for name, values in activations.items():
            try:
                histograms.setdefault(name, Histogram(bins)).add(values)
            except ValueError as error:
                raise EngineryError(f"the activation {name} {error}; are the weights right?") from None
    return histograms


def _activations(model: onnx.ModelProto, batches: Iterable[Feeds]) -> Iterator[Activations]:
    """Yield the activations of each batch, while ONNX Runtime already computes those of the next."""
    exposed = _expose_activations(model)
    session = open_as_written(exposed)
    names = [output.name for output in exposed.graph.output]

    def run(feeds: Feeds) -> Activations:
        inputs = {name: array for name, array in feeds.items() if array.dtype.name in MEASURED}
        arrays = inputs | dict(zip(names, session.run(names, dict(feeds)), strict=True))
        return {name: array.astype(np.float32, copy=False) for name, array in arrays.items()}

    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: Future[Activations] | None = None
        for feeds in batches:
            following = pool.submit(run, feeds)
            if waiting:
                yield waiting.result()
            waiting = following
        if waiting:
            yield waiting.result()


def _expose_activations(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of the graph with every activation to measure as an output."""
    exposed = onnx.shape_inference.infer_shapes(model)
    graph = exposed.graph
    produced = {name for node in graph.node for name in node.output}
    known = {output.name for output in graph.output}
    for value in graph.value_info:
        if value.type.tensor_type.elem_type in MEASURED.values() and value.name in produced - known:
            graph.output.append(value)
    return exposed
