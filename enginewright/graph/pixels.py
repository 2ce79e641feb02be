"""Let a graph take images as the bytes that they are decoded to, and normalize them to the same bits as `normalize` in
enginewright/data/preprocessing.py. The nodes come after a graph has got its types: none of them is quantized."""

import numpy as np
import onnx
from onnx import TensorProto

from enginewright.core.params.samples import Layout, Preprocessing
from enginewright.graph.as_written import Chain
from enginewright.graph.data_apart import with_bodies
from enginewright.graph.onnx_file import graph_inputs

INNER = "take_pixels."  # stands before the names of what is added
TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # which axes become the first, the second and so on


def take_pixels(model: onnx.ModelProto, how: Preprocessing | None, layout: Layout | None) -> onnx.ModelProto:
    """Return the graph with bytes in this layout for its images, or as it is if it takes none."""
    if how is None or layout is None:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    images = next(each for each in graph_inputs(made.graph) if len(each.type.tensor_type.shape.dim) == 4)
    images.type.tensor_type.elem_type = TensorProto.UINT8
    chain = Chain(f"{INNER}{images.name}")
    floats = chain("Cast", images.name, to=TensorProto.FLOAT)  # first: TensorRT's bytes can do nothing else
    if layout != how.layout:
        there, back = (TO_LAST, TO_FIRST) if layout == "nhwc" else (TO_FIRST, TO_LAST)
        dims = images.type.tensor_type.shape.dim
        sizes = [size.SerializeToString() for size in dims]
        for size, place in zip(dims, there, strict=True):
            size.ParseFromString(sizes[place])
        floats = chain("Transpose", floats, perm=back)
    shape = (how.channels,) if how.layout == "nhwc" else (how.channels, 1, 1)
    mean, std = (np.asarray(values, np.float32).reshape(shape) for values in (how.mean, how.std))
    floats = chain("Div", chain("Sub", chain("Div", floats, how.divide_by), mean), std)
    for graph in with_bodies(made.graph):
        for node in graph.node:
            node.input[:] = [floats if name == images.name else name for name in node.input]
    nodes = [*chain.nodes, *made.graph.node]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made
