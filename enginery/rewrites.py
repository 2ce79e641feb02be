"""Graphs as compilers and quantizers get them right: each rewrite computes the same, and says whose trouble it avoids.

None knows a model: they look for what an exporter wrote, wherever it stands. The simplify stage applies them all,
before anything is calibrated, and checks the result against what was exported.
"""

import string
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from enginery.graphs import graph_inputs, opset_of
from enginery.strided_copies import drop_strided_copies

AXES_ARE_AN_INPUT = 13  # of Squeeze, from this opset on; before, they are an attribute


def rewrite_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    """A graph with graphs inside, such as an If's, stays as it is: those read tensors that no node lists."""
    if any(attribute.HasField("g") or attribute.graphs for node in model.graph.node for attribute in node.attribute):
        return model
    rewritten = onnx.shape_inference.infer_shapes(model)
    for rewrite in REWRITES:
        rewrite(rewritten.graph)
    if opset_of(model) >= AXES_ARE_AN_INPUT:
        name_squeezed_axes(rewritten.graph)
    _drop_unused(rewritten.graph)
    return rewritten


def pad_before_pooling(graph: onnx.GraphProto) -> None:
    """OpenVINO's int8 average over a padded edge is wrong where the padding counts: the zeros become a node."""

    def split(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        settings = _attributes(node)
        pads = settings.get("pads", [])
        if (
            node.op_type == "AveragePool"
            and any(pads)
            and settings.get("count_include_pad") == 1
            and not settings.get("ceil_mode")
        ):
            half, padded = len(pads) // 2, f"{node.output[0]}.padded"
            all_axes = np.array([0, 0, *pads[:half], 0, 0, *pads[half:]], np.int64)
            amounts = _new_constant(graph, f"{padded}.pads", all_axes)
            yield helper.make_node("Pad", [node.input[0], amounts], [padded], f"{node.name}.pad")
            kept = {name: value for name, value in settings.items() if name not in ("pads", "count_include_pad")}
            yield helper.make_node("AveragePool", [padded], list(node.output), node.name, **kept)
        else:
            yield node

    _replace_nodes(graph, split)


def spell_out_hard_swish(graph: onnx.GraphProto) -> None:
    """NVIDIA's parser takes no HardSwish in bf16; it takes HardSigmoid and a product, which is what HardSwish means."""

    def split(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        if node.op_type == "HardSwish":
            gate = f"{node.output[0]}.gate"
            yield helper.make_node("HardSigmoid", [node.input[0]], [gate], f"{node.name}.gate", alpha=1 / 6, beta=0.5)
            yield helper.make_node("Mul", [node.input[0], gate], list(node.output), node.name)
        else:
            yield node

    _replace_nodes(graph, split)


def lower_case_equations(graph: onnx.GraphProto) -> None:
    """NVIDIA's parser refuses an Einsum whose equation has capital letters, which PyTorch writes."""
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Einsum" and attribute.name == "equation":
                equation = attribute.s.decode()
                capitals = sorted(set(equation) & set(string.ascii_uppercase))
                free = sorted(set(string.ascii_lowercase) - set(equation))
                if len(capitals) <= len(free):  # else there are more axes than lower-case letters
                    attribute.s = equation.translate(str.maketrans(dict(zip(capitals, free, strict=False)))).encode()


def name_plainly(graph: onnx.GraphProto) -> None:
    """ModelOpt takes `_scale` out of every name that it reads from a cache, and splits a line at each colon.

    So it would leave `x_scale` unquantized, without a word, and stop at a colon. Inputs and outputs keep their names:
    engines are called by them.
    """
    ends = {value.name for value in (*graph.input, *graph.output)}
    taken = ends.union(*((*node.input, *node.output) for node in graph.node))
    renamed: dict[str, str] = {}
    for name in sorted(taken - ends):
        plain = name.replace("_scale", ".scale").replace(":", ".")
        while plain != name and plain in taken:
            plain += "."
        taken.add(plain)
        renamed[name] = plain
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        node.output[:] = [renamed.get(name, name) for name in node.output]
    for named in (*graph.initializer, *graph.value_info):
        named.name = renamed.get(named.name, named.name)


def name_squeezed_axes(graph: onnx.GraphProto) -> None:
    """OpenVINO builds no Squeeze that says no axes where the batch varies: it might be one, and go as well.

    No such thing is meant: an output without a batch is refused. Only sizes that are sure, or that the inputs have, do.
    """
    varies = {size.dim_param for tensor in graph_inputs(graph) for size in tensor.type.tensor_type.shape.dim} - {""}
    known = {tensor.name: tensor.type.tensor_type.shape.dim for tensor in (*graph.input, *graph.value_info)}
    for node in graph.node:
        sizes = known.get(node.input[0], []) if node.op_type == "Squeeze" and len(node.input) == 1 else []
        named = {size.dim_param for size in sizes if not size.HasField("dim_value")}
        axes = np.array([axis for axis, size in enumerate(sizes) if size.dim_value == 1], np.int64)
        if named and named <= varies and len(axes):
            node.input.append(_new_constant(graph, f"{node.output[0]}.axes", axes))


REWRITES: tuple[Callable[[onnx.GraphProto], None], ...] = (
    drop_strided_copies,
    pad_before_pooling,
    spell_out_hard_swish,
    lower_case_equations,
    name_plainly,  # last: the others name tensors too
)


def _replace_nodes(graph: onnx.GraphProto, by: Callable[[onnx.NodeProto], Iterator[onnx.NodeProto]]) -> None:
    nodes = [new for node in list(graph.node) for new in list(by(onnx.NodeProto.FromString(node.SerializeToString())))]
    del graph.node[:]
    graph.node.extend(nodes)


def _new_constant(graph: onnx.GraphProto, name: str, value: NDArray[np.generic]) -> str:
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def _drop_unused(graph: onnx.GraphProto) -> None:
    """Nodes, constants and shapes that a rewrite left behind."""
    needed = {output.name for output in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del graph.node[:]
    graph.node.extend(reversed(kept))
    for holder in (graph.initializer, graph.value_info):
        for index in reversed(range(len(holder))):
            if holder[index].name not in needed:
                del holder[index]


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
