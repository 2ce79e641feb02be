"""Let ModelOpt see one of the large weights of each shape in the place of all of them.

ModelOpt holds twelve copies of the weights at once, and goes through them again and again. Where it puts Q/DQ nodes
depends on shapes, not on values.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.graph.data_apart import array_of, bytes_of, with_bodies
from enginewright.graph.passes.find import add_constant, unused_name

LARGE = 1 << 14  # bytes of a tensor


class Operand(NamedTuple):
    node: str
    place: int


Replaced = dict[Operand, onnx.TensorProto]


def with_stand_ins(model: onnx.ModelProto, kept: Collection[str]) -> tuple[onnx.ModelProto, Replaced]:
    """Return a copy in which nodes share their large weights, and the weights that they had.

    A node in `kept` shares with others in `kept`. Small constants that are shared already become copies, which ModelOpt
    makes itself only where it may copy all.
    """
    light = onnx.ModelProto()
    light.CopyFrom(model)
    large = {tensor.name: tensor for tensor in model.graph.initializer if bytes_of(tensor) >= LARGE}
    replaced = _share_alike(light.graph, large, kept)
    names = {tensor.name for tensor in replaced.values()}
    for tensor in [tensor for tensor in light.graph.initializer if tensor.name in names]:
        light.graph.initializer.remove(tensor)
    _copy_shared(light.graph, {tensor.name: tensor for tensor in model.graph.initializer if tensor.name not in large})
    return light, replaced


def _share_alike(graph: onnx.GraphProto, large: Mapping[str, onnx.TensorProto], kept: Collection[str]) -> Replaced:
    """Let nodes whose large weights have one shape read the weights of the first, and return what they read before."""
    readers = Counter(name for each in with_bodies(graph) for node in each.node for name in node.input)
    own = [(node, place, name) for node, place, name in _inputs(graph) if name in large and readers[name] == 1]
    stand_ins: dict[tuple[object, ...], str] = {}
    replaced: Replaced = {}
    for node, place, name in own:
        tensor = large[name]
        alike = node.op_type, place, node.name in kept, tensor.data_type, *tensor.dims
        if alike in stand_ins:
            node.input[place], replaced[Operand(node.name, place)] = stand_ins[alike], tensor
        elif array_of(tensor).any():  # zeros have a scale that tells nothing
            stand_ins[alike] = name
    return replaced


def _copy_shared(graph: onnx.GraphProto, small: Mapping[str, onnx.TensorProto]) -> None:
    """Let no two inputs read the same small constant."""
    taken = {*(tensor.name for tensor in graph.initializer)}
    taken.update(name for node in graph.node for name in (*node.input, *node.output))
    seen: set[str] = set()
    for node, place, name in _inputs(graph):
        if name in seen:
            copy = graph.initializer.add()
            copy.CopyFrom(small[name])
            node.input[place] = copy.name = unused_name(name, taken)
        elif name in small:
            seen.add(name)


def _inputs(graph: onnx.GraphProto) -> list[tuple[onnx.NodeProto, int, str]]:
    return [(node, place, name) for node in graph.node for place, name in enumerate(node.input)]


def put_back(model: onnx.ModelProto, replaced: Replaced) -> onnx.ModelProto:
    """Return the graph with its own weights, in the type of their stand-ins, and with Q/DQ nodes of their own."""
    whole = ir.from_proto(model)
    nodes = {node.name: node for node in whole.graph}
    for (name, index), tensor in replaced.items():
        _put_back(whole, nodes[name], index, tensor)
    return ir.to_proto(whole)


def _put_back(model: ir.Model, node: ir.Node, index: int, tensor: onnx.TensorProto) -> None:
    value = node.inputs[index]
    pair: list[ir.Node] = []  # that rounds the stand-in
    while value is not None and (maker := value.producer()) is not None:
        pair.insert(0, maker)
        value = maker.inputs[0]
    assert value is not None
    assert value.const_value is not None
    stand_in, array = value.const_value.numpy(), array_of(tensor)
    limits = np.finfo(stand_in.dtype)
    own = add_constant(model, node, tensor.name, array.clip(limits.min, limits.max).astype(stand_in.dtype))
    scales: dict[ir.Value, ir.Value] = {}  # two in a float16 graph, otherwise one
    for each in pair:
        _, scale, zero = each.inputs
        assert scale is not None
        if scale not in scales:
            name = f"{tensor.name}_scale{len(scales) or ''}"
            scales[scale] = add_constant(model, node, name, _scale(scale, each, stand_in, array))
        rounded = ir.val(f"{tensor.name}_{each.op_type}", type=each.outputs[0].type, shape=each.outputs[0].shape)
        given = [own, scales[scale], zero]
        copy = ir.node(each.op_type, given, dict(each.attributes), outputs=[rounded], name=rounded.name)
        node.prepend(copy)
        own = rounded
    node.replace_input_with(index, own)


def _scale(scale: ir.Value, node: ir.Node, stand_in: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return the scales of weights, for each channel or for all: to these, as the stand-in's are to it."""
    assert scale.const_value is not None
    given = scale.const_value.numpy()
    channel = node.attributes["axis"].as_int() % array.ndim if given.size > 1 else None
    others = tuple(axis for axis in range(array.ndim) if axis != channel)
    widest, own = (np.abs(each).max(axis=others).astype(np.float32) for each in (stand_in, array))
    exact = own * (given.flat[widest.argmax()].astype(np.float32) / widest.max())
    made = np.where(exact > 0, exact, 1).reshape(given.shape).astype(given.dtype)
    limited: NDArray[Any] = np.maximum(made, np.finfo(given.dtype).smallest_subnormal)
    return limited
