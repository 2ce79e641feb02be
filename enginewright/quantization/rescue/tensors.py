"""Read tensors within a graph while it runs."""

from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from numpy.typing import NDArray

from enginewright.data.feeds import Feeds
from enginewright.graph.as_written import open_as_written


def tensors_of(
    model: onnx.ModelProto, names: list[str], batches: Iterable[Feeds]
) -> Iterator[dict[str, NDArray[np.float32]]]:
    """Yield these tensors of each batch."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(model)
    given = {tensor.name for tensor in model.graph.input}
    asked, returned = [name for name in names if name not in given], {tensor.name for tensor in model.graph.output}
    inner = [name for name in asked if name not in returned]
    exposed.graph.output.extend(onnx.helper.make_empty_tensor_value_info(name) for name in inner)
    session = open_as_written(exposed) if asked else None
    for feeds in batches:
        found = dict(zip(asked, session.run(asked, dict(feeds)), strict=True)) if session else {}
        yield {name: found[name] if name in found else feeds[name] for name in names}
