"""Graphs as compilers and quantizers get them right: each rewrite computes the same, and says whose trouble it avoids.

None knows a model: they look for what an exporter wrote, wherever it stands. The simplify stage applies them all,
before anything is calibrated, and checks the result against what was exported.
"""

import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Constants = Mapping[str, NDArray[np.generic]]


def rewrite_graph(model: onnx.ModelProto) -> onnx.ModelProto:
    rewritten = onnx.shape_inference.infer_shapes(model)
    for rewrite in REWRITES:
        rewrite(rewritten.graph)
    _drop_unused(rewritten.graph)
    return rewritten


def drop_strided_copies(graph: onnx.GraphProto) -> None:
    """A global average pool leaves PyTorch's exporter as a mean and a Gather of every element, in order.

    AutoCast keeps it in float32, with casts around it, since the numbers that it is given are large.
    """
    constants, makers = _constants(graph), _makers(graph)
    batch = graph.input[0].type.tensor_type.shape.dim[:1]
    shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}

    def made_by(name: str, op_type: str) -> Sequence[str]:
        node = makers.get(name)
        return node.input if node is not None and node.op_type == op_type else ()

    def counts_images(name: str) -> bool:
        """The size of the first axis of the graph's input, by the way that the exporter asks for it."""
        shape = makers.get(next(iter(made_by(name, "Squeeze")), ""))
        return (
            shape is not None
            and shape.op_type == "Shape"
            and shape.input[0] == graph.input[0].name
            and _attributes(shape).get("start", 0) == 0
            and _attributes(shape).get("end") == 1
        )

    def source_of(node: onnx.NodeProto) -> tuple[str, NDArray[np.generic]] | None:
        flat, added = made_by(node.input[0], "Reshape"), made_by(node.input[1], "Add")
        offsets = next((constants[name] for name in added if name in constants), None)
        starts = [made_by(name, "Unsqueeze") for name in added if name not in constants]
        if len(flat) != 2 or offsets is None or len(starts) != 1 or not starts[0]:
            return None
        rows = made_by(starts[0][0], "Mul")
        ranges = [made_by(name, "Range") for name in rows if name not in constants]
        widths = [constants[name] for name in rows if name in constants]
        if len(ranges) != 1 or len(widths) != 1 or len(ranges[0]) != 3:
            return None
        first, limit, by = ranges[0]
        shape = shapes.get(flat[0], ())
        is_every_element = (
            _attributes(node).get("axis", 0) == 0
            and np.array_equal(constants.get(flat[1], np.zeros(0)), [-1])
            and np.array_equal(constants.get(first, np.ones(1)), 0)
            and np.array_equal(constants.get(by, np.zeros(1)), 1)
            and counts_images(limit)
            and np.array_equal(offsets.ravel(), np.arange(offsets.size))
            and offsets.shape[:1] == (1,)
            and np.array_equal(widths[0].ravel(), [offsets.size])
            and list(shape[:1]) == list(batch)
            and int(np.prod([size.dim_value for size in shape[1:]])) == offsets.size
        )
        return (flat[0], offsets) if is_every_element else None

    for node in graph.node:
        found = source_of(node) if node.op_type == "Gather" else None
        if found:
            source, offsets = found
            shape = _new_constant(graph, f"{node.output[0]}.shape", np.array([-1, *offsets.shape[1:]], np.int64))
            node.CopyFrom(helper.make_node("Reshape", [source, shape], list(node.output), node.name))


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


def _constants(graph: onnx.GraphProto) -> Constants:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}


def _makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    return {name: node for node in graph.node for name in node.output}


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
