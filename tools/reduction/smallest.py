"""Find the smallest part of a graph that still shows a fault."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from tools.reduction.case import Case
from tools.reduction.gathered import find_picks, find_pieces, with_gather, with_split

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
