"""Keep nodes of a typed graph in high precision where a compiler gets them wrong: an island, with other nodes around it
as they are."""

from collections.abc import Collection, Mapping

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from enginewright.graph.data_apart import array_of, bodies_of
from enginewright.graph.passes import apply_passes, changed_by
from enginewright.graph.passes.find import Pass, remove_unused
from enginewright.graph.shapes import shapes_of
from enginewright.precision.cure import Change
from enginewright.precision.in_dialect import REWRITES, UNKNOWN

SPELLINGS: Mapping[str, Pass] = {
    each.__name__: each for each in (*(each for passes in REWRITES.values() for each in passes), *UNKNOWN.values())
}
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
NO_LAYERS = {"QuantizeLinear", "DequantizeLinear", "Cast", "Constant"}
Bytes = Mapping[str, TensorProto]


def changed(model: onnx.ModelProto, change: Change) -> onnx.ModelProto | None:
    """Return the graph with a change, or None where it has nothing of it or lacks one of its nodes."""
    if change.spelling:
        return changed_by(model, SPELLINGS[change.spelling]) if change.spelling in SPELLINGS else None
    if not change.nodes:
        return model
    names = {node.name for node in model.graph.node}
    return with_island(model, change.nodes, change.in_float32) if names.issuperset(change.nodes) else None


def layers_to_keep(model: onnx.ModelProto, in_float32: bool) -> list[str]:
    """Return the nodes that an island changes: those that read what was rounded to bytes, and with `in_float32` those
    that read 16 bits, too."""
    found = _Found(model)

    def is_changed(node: onnx.NodeProto) -> bool:
        if node.op_type in NO_LAYERS or node.domain or not node.name or any(True for _ in bodies_of(node)):
            return False
        return any(found.reads_rounded(name) or (in_float32 and found.types.get(name) in HALVES) for name in node.input)

    return [node.name for node in model.graph.node if is_changed(node)]


def with_island(model: onnx.ModelProto, nodes: Collection[str], in_float32: bool) -> onnx.ModelProto:
    """Return the graph in which these nodes read what others read rounded as it was before; with `in_float32`, they
    compute in float32, and hand it on among themselves. Leave `model` as it is."""
    cured = onnx.ModelProto()
    cured.CopyFrom(model)
    graph, found = cured.graph, _Found(cured)
    given, written = list(graph.node), list[onnx.NodeProto]()
    wide: dict[str, str] = {}  # the tensor in float32, by the name of that in 16 bits

    def widened(name: str) -> str:
        if not in_float32 or found.types.get(name) not in HALVES:
            return name
        if name not in wide:
            wide[name] = f"{name}.float32"
            written.append(helper.make_node("Cast", [name], [wide[name]], wide[name], to=TensorProto.FLOAT))
        return wide[name]

    for node in given:
        is_kept = node.name in nodes
        for place, name in enumerate(node.input if is_kept else ()):
            node.input[place] = widened(_exact(name, found, graph) if found.reads_rounded(name) else name)
        written.append(node)
        for place, name in enumerate(node.output if is_kept else ()):
            if in_float32 and found.types.get(name) in HALVES:
                node.output[place] = wide[name] = f"{name}.float32"
                written.append(helper.make_node("Cast", [wide[name]], [name], f"{name}.cast", to=found.types[name]))
    del graph.node[:]
    graph.node.extend(written)
    return apply_passes(cured, remove_unused)


class _Found:
    """What is known of the tensors of a graph."""

    def __init__(self, model: onnx.ModelProto) -> None:
        graph = shapes_of(model).graph
        self.types = {each.name: each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.output)}
        self.types |= {each.name: each.type.tensor_type.elem_type for each in graph.input}
        self.types |= {each.name: each.data_type for each in graph.initializer}
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self.constants = {each.name: each for each in model.graph.initializer}

    def reads_rounded(self, name: str) -> bool:
        """Tell whether the tensor was in bytes, and what it was before is known, or follows from constants."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear":
            return False
        if before := self.before_rounding(node):
            return self.types.get(before) == self.types.get(name)
        is_plain = all(each.name in ("axis", "output_dtype") for each in node.attribute)
        return is_plain and self.constants.keys() >= set(filter(None, node.input))

    def before_rounding(self, node: onnx.NodeProto) -> str | None:
        rounding = self.makers.get(node.input[0])
        return rounding.input[0] if rounding is not None and rounding.op_type == "QuantizeLinear" else None


def _exact(name: str, found: _Found, graph: onnx.GraphProto) -> str:
    """Return the tensor before it was rounded. Constants in bytes become floats, which no compiler takes for bytes."""
    node = found.makers[name]
    if before := found.before_rounding(node):
        return before
    target = f"{name}.exact"
    if target not in found.types:
        found.types[target] = found.types[node.input[1]]
        floats = _as_floats(node, found.constants)
        dtype = helper.tensor_dtype_to_np_dtype(found.types[target])
        graph.initializer.append(numpy_helper.from_array(floats.astype(dtype), target))
    return target


def _as_floats(node: onnx.NodeProto, constants: Bytes) -> NDArray[np.float32]:
    numbers, scale, *zero = (array_of(constants[name]).astype(np.float32) for name in node.input if name)
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    shape = [-1 if place == axis % max(1, numbers.ndim) else 1 for place in range(numbers.ndim)]
    scale, *zero = (each.reshape(shape) if each.size > 1 else each.reshape(()) for each in (scale, *zero))
    return np.asarray((numbers - (zero[0] if zero else 0)) * scale, np.float32)
