"""Say in one node what Slice and Squeeze say in two: take one place of an axis, as q, k and v of an attention are."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from enginery.reduction.case import Case


class Pick(NamedTuple):
    slice: int  # the place of the node
    squeeze: int
    axis: int
    chosen: int


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
    gathered = Case(model, case.runs)
    return gathered.part(range(len(gathered.units)))  # without the constants that nothing reads any longer


def find_picks(graph: onnx.GraphProto) -> Iterator[Pick]:
    """Yield the pairs of nodes that take one place of an axis together."""
    constants = {each.name: numpy_helper.to_array(each) for each in graph.initializer}
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
