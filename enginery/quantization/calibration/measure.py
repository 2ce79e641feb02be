"""Watch every activation of a graph while samples stream through it."""

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
    """A histogram for each activation in float32 or float16. Nothing is kept of a batch once it is counted."""
    histograms: dict[str, Histogram] = {}
    for activations in _activations(model, batches):
        for name, values in activations.items():
            try:
                histograms.setdefault(name, Histogram(bins)).add(values)
            except ValueError as error:
                raise EngineryError(f"the activation {name} {error}; are the weights right?") from None
    return histograms


def _activations(model: onnx.ModelProto, batches: Iterable[Feeds]) -> Iterator[Activations]:
    """One batch ahead: ONNX Runtime computes the next while the caller counts the last."""
    watched = _expose_activations(model)
    session = open_as_written(watched)
    names = [output.name for output in watched.graph.output]

    def run(feeds: Feeds) -> Activations:
        given = {name: array for name, array in feeds.items() if array.dtype.name in MEASURED}
        seen = given | dict(zip(names, session.run(names, dict(feeds)), strict=True))
        return {name: array.astype(np.float32, copy=False) for name, array in seen.items()}

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
    """The same graph with every activation to measure as an output."""
    watched = onnx.ModelProto()
    watched.CopyFrom(onnx.shape_inference.infer_shapes(model))
    graph = watched.graph
    produced = {name for node in graph.node for name in node.output}
    known = {output.name for output in graph.output}
    for value in graph.value_info:
        if value.type.tensor_type.elem_type in MEASURED.values() and value.name in produced - known:
            graph.output.append(value)
    return watched
