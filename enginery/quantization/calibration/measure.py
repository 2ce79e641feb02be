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
    exposed = onnx.shape_inference.infer_shapes(model)  # a copy, which gets every activation to measure as an output
    graph = exposed.graph
    hidden = {name for node in graph.node for name in node.output} - {output.name for output in graph.output}
    measured = [value for value in graph.value_info if value.type.tensor_type.elem_type in MEASURED.values()]
    graph.output.extend(value for value in measured if value.name in hidden)
    session, names = open_as_written(exposed), [output.name for output in graph.output]

    def run(feeds: Feeds) -> Activations:
        inputs = {name: array for name, array in feeds.items() if array.dtype.name in MEASURED}
        arrays = inputs | dict(zip(names, session.run(names, dict(feeds)), strict=True))
        return {name: array.astype(np.float32, copy=False) for name, array in arrays.items()}

    with ThreadPoolExecutor(max_workers=1) as pool:
        waiting: list[Future[Activations]] = []
        for feeds in batches:
            waiting.append(pool.submit(run, feeds))
            if len(waiting) == 2:
                yield waiting.pop(0).result()
        yield from (computed.result() for computed in waiting)
