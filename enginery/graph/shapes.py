"""Infer the type and shape of each tensor."""

import onnx
from onnx import TensorProto

from enginery.graph.data_apart import FEWEST_BYTES, bytes_of, with_bodies


def with_shapes(model: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
    """Return a copy with the inferred type and shape of each tensor.

    ONNX's inference gets no weights, of which it would make several more copies: it reads small constants alone.
    """
    light = onnx.ModelProto()
    light.CopyFrom(model)
    for graph in with_bodies(light.graph):
        for tensor in filter(_is_large, graph.initializer):
            tensor.CopyFrom(TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims))
    inferred = onnx.shape_inference.infer_shapes(light, data_prop=data_prop)
    for found, given in zip(with_bodies(inferred.graph), with_bodies(model.graph), strict=True):
        for tensor, weights in zip(found.initializer, given.initializer, strict=True):
            if _is_large(weights):
                tensor.CopyFrom(weights)
    return inferred


def _is_large(tensor: TensorProto) -> bool:
    return bytes_of(tensor) >= FEWEST_BYTES
