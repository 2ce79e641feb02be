"""Find the smallest part of a graph that still shows a fault."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from enginewright.precision.find_cure import fewest
from tools.reduction.case import Case

Attempt = Callable[[Callable[[], Case]], Case | None]  # returns the case if it can be made and shows the fault


def smallest(case: Case, attempt: Attempt, keeps_values: bool) -> Case:
    """Return the fewest nodes and then the fewest inputs that were found. The case itself must show the fault.

    A fault in results may need the values that the network has. One that refuses a graph needs none of them.
    """
    case = _one_output(fewest_nodes(_one_output(case, attempt), attempt), attempt)
    for run in sorted(case.runs, key=lambda run: sum(array.size for array in run.values())):
        if len(case.runs) > 1 and (single := attempt(partial(case.with_runs, [run]))):
            case = fewest_nodes(single, attempt)
    return case if keeps_values else _rewired(case, attempt)


def _one_output(case: Case, attempt: Attempt) -> Case:
    """Return only what leads to one of the outputs, if that shows the fault."""
    outputs, every = [tensor.name for tensor in case.model.graph.output], range(len(case.units))
    parts = (attempt(partial(case.part, every, name)) for name in outputs) if len(outputs) > 1 else iter(())
    return next(filter(None, parts), case)


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
    """Leave out nodes as long as the fault stays."""
    tried: dict[tuple[int, ...], Case | None] = {}

    def is_enough(units: Sequence[int]) -> bool:
        tried[tuple(units)] = part = attempt(partial(case.part, units))
        return part is not None

    return tried.get(tuple(fewest(range(len(case.units)), is_enough))) or case
