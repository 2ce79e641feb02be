"""Infer the type and shape of each tensor."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx
from onnx import TensorProto

from enginewright.data.feeds import Feeds
from enginewright.graph.data_apart import FEWEST_BYTES, bytes_of, with_bodies
from enginewright.graph.onnx_file import graph_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

Shapes = Mapping[str, tuple[int, ...]]


def as_ir(model: onnx.ModelProto) -> "ir.Model":
    """Return the graph in onnx_ir's form, with the inferred type and shape of each tensor. Its weights are those of
    `model`, of which there is no copy."""
    import onnx_ir as ir  # takes longer to import than onnx

    inferred = ir.from_proto(shapes_of(model))
    for found, given in zip(inferred.graphs(), with_bodies(model.graph), strict=True):
        for weights in filter(_is_large, given.initializer):
            found.initializers[weights.name].const_value = ir.from_proto(weights)
    return inferred


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy with the inferred type and shape of each tensor."""
    inferred = shapes_of(model)
    for found, given in zip(with_bodies(inferred.graph), with_bodies(model.graph), strict=True):
        for tensor, weights in zip(found.initializer, given.initializer, strict=True):
            if _is_large(weights):
                tensor.CopyFrom(weights)
    return inferred


def shapes_of(model: onnx.ModelProto, data_prop: bool = False) -> onnx.ModelProto:
    """Return a copy without the values of large weights, with the inferred type and shape of each tensor. ONNX's
    inference would make several more copies of weights. It reads small constants alone."""
    return onnx.shape_inference.infer_shapes(without_weights(model), data_prop=data_prop)


def shapes_for(model: onnx.ModelProto, sample: Feeds) -> Shapes:
    """Return the shape of each tensor for one sample. What cannot be known counts as one."""
    fixed = without_weights(model)
    del fixed.graph.value_info[:]
    for tensor in graph_inputs(fixed.graph):
        for axis, size in enumerate(tensor.type.tensor_type.shape.dim):
            if not size.HasField("dim_value"):
                size.dim_value = sample[tensor.name].shape[axis] if axis and tensor.name in sample else 1
    for tensor in fixed.graph.output:
        tensor.type.tensor_type.ClearField("shape")
    known = shapes_of(fixed, data_prop=True).graph
    shapes = {
        tensor.name: tuple(size.dim_value or 1 for size in tensor.type.tensor_type.shape.dim)
        for tensor in (*known.input, *known.value_info, *known.output)
    }
    return shapes | {tensor.name: tuple(tensor.dims) for tensor in fixed.graph.initializer}


def without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy whose large weights have a name, a type and a shape, and no values."""
    light: onnx.ModelProto = _without(model, "graph")
    light.graph.CopyFrom(_without(model.graph, "initializer"))
    light.graph.initializer.extend(_named(each) if _is_large(each) else each for each in model.graph.initializer)
    for body in with_bodies(light.graph):
        for tensor in filter(_is_large, body.initializer):
            tensor.CopyFrom(_named(tensor))
    return light


def _without(message: Any, name: str) -> Any:
    """Return a copy without one field, of which no copy is made."""
    return type(message)(**{field.name: value for field, value in message.ListFields() if field.name != name})


def _named(tensor: TensorProto) -> TensorProto:
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _is_large(tensor: TensorProto) -> bool:
    return bytes_of(tensor) >= FEWEST_BYTES
