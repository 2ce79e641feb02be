"""Find the smallest part of a graph that still shows a fault."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tools.reduction.case import Case

Attempt = Callable[[Callable[[], Case]], Case | None]  # returns the case if it can be made and shows the fault


def smallest(case: Case, attempt: Attempt, keeps_values: bool) -> Case:
    """Return the fewest nodes and then the fewest inputs that were found. The case itself must show the fault.

    A fault in results may need the values that the network has. One that refuses a graph needs none of them.
    """
    case = _one_output(case, attempt)
    for from_start in (True, False):
        case = _shortest(case, attempt, from_start)
    case = _one_output(fewest_nodes(case, attempt), attempt)
    for run in sorted(case.runs, key=lambda run: sum(array.size for array in run.values())):
        if len(case.runs) > 1 and (single := attempt(partial(case.with_runs, [run]))):
            case = fewest_nodes(single, attempt)
    picks = list(find_picks(case.model.graph))
    case = (attempt(partial(with_gather, case, picks)) if picks else None) or case
    case = case if keeps_values else _rewired(case, attempt)
    splits = (attempt(partial(with_split, case, pieces)) for pieces in find_pieces(case.model.graph))
    return next(filter(None, splits), case)


def _one_output(case: Case, attempt: Attempt) -> Case:
    """Return only what leads to one of the outputs, if that shows the fault."""
    outputs, every = [tensor.name for tensor in case.model.graph.output], range(len(case.units))
    parts = (attempt(partial(case.part, every, name)) for name in outputs) if len(outputs) > 1 else iter(())
    return next(filter(None, parts), case)


def _shortest(case: Case, attempt: Attempt, from_start: bool) -> Case:
    """Return the shortest start, or end, of the nodes in the order of execution: ten trials for a thousand nodes."""
    count = len(case.units)
    few, enough, found = 0, count, case
    while enough - few > 1:
        middle = (few + enough) // 2
        kept = list(range(middle) if from_start else range(count - middle, count))
        if part := attempt(partial(case.part, kept)):
            enough, found = middle, part
        else:
            few = middle
    return found


def _rewired(case: Case, attempt: Attempt) -> Case:
    """Let nodes read what others read, and tensors of the graph instead of inputs, where less is left then."""
    for source, instead_of in _rewirings(case):
        part = attempt(partial(case.reading, source, instead_of))
        if part and _size(part) < _size(case):
            return _rewired(fewest_nodes(part, attempt), attempt)
    return case


def _rewirings(case: Case) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield tensors, and what they may be read instead of: the result of a node that reads them, or an input."""
    inputs, made = {tensor.name for tensor in case.model.graph.input}, list[str]()
    for node in case.nodes:
        yield from ((name, node.output) for name in node.input if name)
        yield from ((source, [name]) for name in node.input if name in inputs for source in reversed(made))
        made += node.output


def _size(case: Case) -> tuple[int, int]:
    return len(case.nodes), len(case.model.graph.input)


def fewest_nodes(case: Case, attempt: Attempt) -> Case:
    """Leave out stretches of nodes, then single ones, as long as the fault stays."""
    size = max(1, len(case.units) // 2)
    while True:
        smaller = _without_stretches(case, attempt, size)
        if size == 1 and len(smaller.nodes) == len(case.nodes):
            return smaller
        case, size = smaller, max(1, size // 2)


def _without_stretches(case: Case, attempt: Attempt, size: int) -> Case:
    stop = len(case.units)
    while stop > 0:
        start = max(0, stop - size)
        kept = [unit for unit in range(len(case.units)) if not start <= unit < stop]
        part = attempt(partial(case.part, kept)) if kept else None
        if part and len(part.nodes) < len(case.nodes):
            case = part
        stop = start
    return case


# q, k and v of an attention may be taken apart in fewer nodes: by a Gather for a Slice and a Squeeze, by a Split for
# Gathers.


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
