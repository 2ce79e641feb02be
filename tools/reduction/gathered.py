"""Say in fewer nodes how q, k and v of an attention are taken apart: a Gather for a Slice and a Squeeze, a Split for
Gathers."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tools.reduction.case import Case


class Pick(NamedTuple):
    slice: int  # the place of the node
    squeeze: int
    axis: int
    chosen: int


class Pieces(NamedTuple):
    source: str
    axis: int
    gathers: Sequence[int]  # the places of the nodes that take its places, in their order


def with_gather(case: Case, picks: Sequence[Pick]) -> Case:
    """Return the case with one Gather for each pair."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    nodes = model.graph.node
    for pick in picks:
        index, source, target = f"{nodes[pick.slice].output[0]}.index", nodes[pick.slice].input[0], nodes[pick.squeeze]
        gather = helper.make_node("Gather", [source, index], target.output, target.name, axis=pick.axis)
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(pick.chosen), index))
        target.CopyFrom(gather)
    for place in sorted((pick.slice for pick in picks), reverse=True):
        del nodes[place]
    return Case(model, case.runs).pruned()


def find_picks(graph: onnx.GraphProto) -> Iterator[Pick]:
    """Yield the pairs of nodes that take one place of an axis together."""
    constants = _constants(graph)
    slices = {node.output[0]: place for place, node in enumerate(graph.node) if node.op_type == "Slice"}
    read = [name for node in graph.node for name in node.input] + [output.name for output in graph.output]
    for place, node in enumerate(graph.node):
        if node.op_type != "Squeeze" or node.input[0] not in slices or read.count(node.input[0]) > 1:
            continue
        cut = graph.node[slices[node.input[0]]]
        names = [*cut.input[1:2], *cut.input[3:4], *node.input[1:]]  # start and axes of both; old ones are attributes
        if len(names) == 3 and constants.keys() >= set(names) and all(constants[name].size == 1 for name in names):
            index, axis, squeezed = (int(constants[name].item()) for name in names)
            if axis == squeezed:
                yield Pick(slices[node.input[0]], place, axis, index)


def with_split(case: Case, pieces: Pieces) -> Case:
    """Return the case with a Split for Gathers. What reads them gets an axis of one place more."""
    model = case.without_shapes()
    nodes = model.graph.node
    name, outputs = nodes[pieces.gathers[0]].name, [nodes[place].output[0] for place in pieces.gathers]
    sizes = numpy_helper.from_array(np.ones(len(outputs), np.int64), f"{name}.sizes")
    model.graph.initializer.append(sizes)
    split = helper.make_node("Split", [pieces.source, sizes.name], outputs, name, axis=pieces.axis)
    for place in sorted(pieces.gathers, reverse=True):
        del nodes[place]
    nodes.insert(min(pieces.gathers), split)
    return Case(model, case.runs).pruned()


def find_pieces(graph: onnx.GraphProto) -> Iterator[Pieces]:
    """Yield Gathers that take the first places of one axis, each one of them."""
    constants, found = _constants(graph), defaultdict[tuple[str, int], dict[int, int]](dict)
    for place, node in enumerate(graph.node):
        index = constants.get(node.input[1]) if node.op_type == "Gather" else None
        if index is not None and not index.ndim:
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            found[node.input[0], axis][int(index)] = place
    for (source, axis), places in found.items():
        if len(places) > 1 and sorted(places) == list(range(len(places))):
            yield Pieces(source, axis, [places[index] for index in sorted(places)])


def _constants(graph: onnx.GraphProto) -> Mapping[str, NDArray[Any]]:
    return {each.name: numpy_helper.to_array(each) for each in graph.initializer}
