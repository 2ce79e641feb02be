"""Change a typed graph that a compiler gets wrong: spell it otherwise, or keep nodes in high precision: an island."""

from collections.abc import Collection
from copy import deepcopy

import onnx
from onnx import TensorProto, helper

from enginewright.graph.data_apart import bodies_of
from enginewright.graph.interface import APART
from enginewright.graph.passes import apply_passes, changed_by, lower_case_equations
from enginewright.graph.passes.find import remove_unused
from enginewright.graph.read_interface import unread_outputs
from enginewright.graph.shapes import shapes_of
from enginewright.precision.cure import GraphChange
from enginewright.precision.in_dialect import REWRITES, UNKNOWN

PASSES = lower_case_equations, *(each for few in REWRITES.values() for each in few), *UNKNOWN.values()
SPELLINGS = {each.__name__: each for each in PASSES}
HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
FLOATS = (TensorProto.FLOAT, *HALVES)
NO_LAYERS = {"QuantizeLinear", "DequantizeLinear", "Cast"}


def changed(model: onnx.ModelProto, change: GraphChange) -> onnx.ModelProto | None:
    """Return the graph with a change, or None where there is nothing to change, or not all of the nodes."""
    if change.spelling:
        return changed_by(model, SPELLINGS[change.spelling]) if change.spelling in SPELLINGS else None
    if not {node.name for node in model.graph.node}.issuperset(change.nodes):
        return None
    if change.apart:
        tensors = [each for name, each in nodes_to_part(model).items() if name in change.nodes]
        return with_barriers(model, tensors) if len(tensors) == len(change.nodes) else None
    return with_island(model, change.nodes, change.in_float32) if change.nodes else model


def layers_to_keep(model: onnx.ModelProto, in_float32: bool) -> tuple[str, ...]:
    """Return the nodes that an island changes: those that read bytes, or with `in_float32` what has 16 bits."""
    before, halves = _low(model, in_float32)
    nodes = [node for node in model.graph.node if node.name and node.op_type not in NO_LAYERS and not node.domain]
    low = before.keys() | halves.keys()
    return tuple(node.name for node in nodes if not low.isdisjoint(node.input) and not any(bodies_of(node)))


def nodes_to_part(model: onnx.ModelProto) -> dict[str, onnx.ValueInfoProto]:
    """Return the nodes whose results a compiler might not keep as they are, with these: inner tensors of floats, whose
    first axis is the batch, as Triton asks of outputs."""
    graph = shapes_of(model).graph
    batches = {str(each.type.tensor_type.shape.dim[:1]) for each in graph.input} - {"[]"}
    floats = [each for each in graph.value_info if each.type.tensor_type.elem_type in FLOATS]
    inner = {each.name: each for each in floats if str(each.type.tensor_type.shape.dim[:1]) in batches}
    for output in graph.output:  # a file may describe them twice
        inner.pop(output.name, None)
    layers = [node for node in model.graph.node if node.name and node.op_type not in NO_LAYERS]
    return {node.name: inner[node.output[0]] for node in layers if node.output[0] in inner}


def with_barriers(model: onnx.ModelProto, tensors: Collection[onnx.ValueInfoProto]) -> onnx.ModelProto:
    """Return the graph with these tensors as outputs, and a note that nobody reads them. Each compiler keeps outputs;
    with TensorRT's `mark_debug`, 10.6 crashed on an H200, or its engines had half the speed or less."""
    parted = deepcopy(model)
    parted.graph.output.extend(tensors)
    names = "\n".join([*unread_outputs(model), *(each.name for each in tensors)])
    helper.set_model_props(parted, {each.key: each.value for each in model.metadata_props} | {APART: names})
    return parted


def with_island(model: onnx.ModelProto, nodes: Collection[str], in_float32: bool) -> onnx.ModelProto:
    """Return the graph in which these nodes read what others read rounded as it was before; with `in_float32` they
    compute in float32, and hand that on among themselves. Leave `model` as it is."""
    island = deepcopy(model)
    (before, halves), written, wide = _low(island, in_float32), list[onnx.NodeProto](), dict[str, str]()
    for node in island.graph.node:
        for place, name in enumerate(node.input if node.name in nodes else ()):
            name = before.get(name, name)
            if name in halves and name not in wide:
                wide[name] = f"{name}.float32"
                written.append(_cast(name, wide[name], TensorProto.FLOAT))
            node.input[place] = wide.get(name, name)
        written.append(node)
        for place, name in enumerate(node.output if node.name in nodes else ()):
            if name in halves:
                node.output[place] = wide[name] = f"{name}.float32"
                written.append(_cast(wide[name], name, halves[name]))
    del island.graph.node[:]
    island.graph.node.extend(written)
    return apply_passes(island, remove_unused)


def _cast(source: str, target: str, to: int) -> onnx.NodeProto:
    return helper.make_node("Cast", [source], [target], f"{target}.cast", to=to)


def _low(model: onnx.ModelProto, in_float32: bool) -> tuple[dict[str, str], dict[str, int]]:
    """Return what each rounded activation was before that; and the types of the tensors in 16 bits, if these count."""
    graph = shapes_of(model).graph
    types = {each.name: each.type.tensor_type.elem_type for each in (*graph.value_info, *graph.input, *graph.output)}
    types |= {each.name: each.data_type for each in graph.initializer}
    makers = {name: node for node in graph.node for name in node.output}
    before = {}
    for node in graph.node:
        rounding = makers.get(node.input[0]) if node.op_type == "DequantizeLinear" else None
        if rounding is not None and rounding.op_type == "QuantizeLinear":
            source, target = rounding.input[0], node.output[0]
            if types.get(source) == types.get(target):
                before[target] = source
    return before, {name: kind for name, kind in types.items() if in_float32 and kind in HALVES}
