"""A graph with inputs, from which any nodes can be cut out likewise: the fewest that still show a fault."""

from collections.abc import Callable, Collection, Iterator, Sequence
from copy import deepcopy
from functools import cached_property, partial
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from enginewright.data.feeds import Feeds, Outputs
from enginewright.graph.as_written import open_as_written, twin_of
from enginewright.graph.data_apart import bodies_of
from enginewright.graph.onnx_file import graph_inputs
from enginewright.graph.shapes import shapes_of
from enginewright.precision.find_cure import fewest

BF16, FLOAT = TensorProto.BFLOAT16, TensorProto.FLOAT


class Case:
    """A graph, and the inputs of some runs. Batch sizes that differ from run to run vary in the graph, too."""

    def __init__(self, model: onnx.ModelProto, runs: Sequence[Feeds]) -> None:
        self.model, self.runs = model, tuple(runs)
        self.nodes: Sequence[onnx.NodeProto] = model.graph.node

    @cached_property
    def expected(self) -> list[Outputs]:
        """Return what the graph means, run by run."""
        names = [output.name for output in self.model.graph.output]
        return [self._values(names, run) for run in range(len(self.runs))]

    @cached_property
    def units(self) -> list[list[int]]:
        """Return the places of nodes that are cut out together: a rounding to bytes and back is one operation, and
        compilers have faults of their own where bytes leave a graph."""
        unit_of: dict[str, list[int]] = {}  # by the name of bytes
        units = []
        for place, node in enumerate(self.nodes):
            if node.op_type == "DequantizeLinear" and node.input[0] in unit_of:
                unit_of[node.input[0]].append(place)
                continue
            units.append([place])
            if node.op_type == "QuantizeLinear":
                unit_of[node.output[0]] = units[-1]
        return units

    @property
    def operations(self) -> int:
        """Count what computes: a rounding to bytes and back once, and constants not at all."""
        return sum(not self._constants.issuperset(self.nodes[unit[0]].output) for unit in self.units)

    def part(self, chosen: Collection[int], output: str | None = None) -> "Case":
        """Return some of the units as a graph, with all that they compute for others, or one output and what leads to
        it. What they read from others is an input, or a constant if it follows from constants."""
        nodes = [self.nodes[place] for place in sorted(place for unit in chosen for place in self.units[unit])]
        nodes = _leading_to([output], nodes) if output else nodes
        made = {name for node in nodes for name in node.output}
        read = dict.fromkeys(name for node in nodes for name in _names_read(node))
        given = [name for name in read if name not in made]
        outputs = [output] if output else [name for name in made if name in self._read and name not in read]
        free = [name for name in given if name not in self._constants]
        values = [self._values(free, run) for run in range(len(self.runs))]
        fed, returned = self._as_float32(free), self._as_float32(outputs)
        narrowed = [helper.make_node("Cast", [wide], [n], wide, to=BF16) for n, wide in fed.items() if n != wide]
        widened = [helper.make_node("Cast", [n], [wide], wide, to=FLOAT) for n, wide in returned.items() if n != wide]
        graph = helper.make_graph(
            [*narrowed, *nodes, *widened],
            self.model.graph.name or "part",
            [_described(fed[name], [each[name] for each in values]) for name in free],
            [
                helper.make_tensor_value_info(wide, self._types.get(name, FLOAT) if name == wide else FLOAT, None)
                for name, wide in returned.items()
            ],
            [self._constant(name) for name in given if name in self._constants],
        )
        model = deepcopy(self.model)
        model.graph.CopyFrom(graph)
        return Case(model, [{fed[name]: array for name, array in each.items()} for each in values])

    def reading(self, source: str, instead_of: Collection[str]) -> "Case":
        """Return the graph whose nodes read one tensor instead of others, whose sizes may differ, without nodes,
        constants and inputs that nothing follows from then."""
        model = self.without_shapes()
        for node in model.graph.node:
            node.input[:] = [source if name in instead_of else name for name in node.input]
        needed = _leading_to([tensor.name for tensor in model.graph.output], model.graph.node)
        del model.graph.node[:]
        model.graph.node.extend(needed)
        whole = Case(model, self.runs)
        return whole.part(range(len(whole.units)))

    def with_runs(self, runs: Sequence[Feeds]) -> "Case":
        """Return the same graph for other inputs, which decide the sizes that vary."""
        model = self.without_shapes()
        inputs = [_described(tensor.name, [run[tensor.name] for run in runs]) for tensor in graph_inputs(model.graph)]
        for tensor in graph_inputs(model.graph):
            model.graph.input.remove(tensor)
        model.graph.input.extend(inputs)
        return Case(model, runs)

    def without_shapes(self) -> onnx.ModelProto:
        """Return a copy of the graph that does not say how large its results are."""
        model = deepcopy(self.model)
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        del model.graph.value_info[:]
        return model

    def _values(self, names: Sequence[str], run: int) -> Outputs:
        fed = {name: self.runs[run][name] for name in names if name in self.runs[run]}
        others = [name for name in names if name not in fed]
        found = self._session.run(others, dict(self.runs[run])) if others else []
        return {**fed, **dict(zip(others, found, strict=True))}

    @cached_property
    def _session(self) -> onnxruntime.InferenceSession:
        """Open the graph as it is written, with every tensor as an output."""
        known = {output.name for output in self.model.graph.output}
        made = [name for node in self.nodes for name in node.output if name and name not in known]
        every = onnx.ModelProto()
        every.CopyFrom(twin_of(self.model) or self.model)
        every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in made)
        return open_as_written(every)

    @cached_property
    def _read(self) -> set[str]:
        read = {name for node in self.nodes for name in _names_read(node)}
        return read | {output.name for output in self.model.graph.output}

    @cached_property
    def _types(self) -> dict[str, int]:
        graph = shapes_of(self.model).graph
        return {tensor.name: tensor.type.tensor_type.elem_type for tensor in (*graph.value_info, *graph.output)}

    def _as_float32(self, names: Sequence[str]) -> dict[str, str]:
        """Return other names for tensors that a graph must not read or return in bfloat16, which NumPy lacks."""
        return {name: f"{name}.float32" if self._types.get(name) == BF16 else name for name in names}

    @cached_property
    def _stored(self) -> dict[str, TensorProto]:
        return {tensor.name: tensor for tensor in self.model.graph.initializer}

    @cached_property
    def _constants(self) -> set[str]:
        """Find what follows from constants alone, such as weights that are read from bytes."""
        found = set(self._stored)
        for node in self.nodes:
            if found.issuperset(_names_read(node)) and not node.op_type.startswith("Random"):
                found.update(node.output)
        return found

    def _constant(self, name: str) -> TensorProto:
        if name in self._stored:
            return self._stored[name]
        array = self._values([name], 0)[name]
        dtype = helper.tensor_dtype_to_np_dtype(BF16) if self._types.get(name) == BF16 else array.dtype
        return numpy_helper.from_array(array.astype(dtype), name)


def _leading_to(outputs: Collection[str], nodes: Sequence[onnx.NodeProto]) -> list[onnx.NodeProto]:
    """Return the nodes without those that none of the outputs follows from."""
    needed, leading = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(_names_read(node))
            leading.append(node)
    return leading[::-1]


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the tensors that a node reads, also those that bodies such as a Loop's read from outside."""
    yield from (name for name in node.input if name)
    for body in bodies_of(node):
        own = {tensor.name for tensor in (*body.input, *body.initializer)}
        own.update(name for inner in body.node for name in inner.output)
        names = [name for inner in body.node for name in _names_read(inner)] + [value.name for value in body.output]
        yield from (name for name in names if name not in own)


def _described(name: str, arrays: Sequence[NDArray[Any]]) -> onnx.ValueInfoProto:
    """Describe an input: a size that differs from run to run varies."""
    shape = [sizes[0] if len(set(sizes)) == 1 else None for sizes in zip(*(one.shape for one in arrays), strict=True)]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.asarray(arrays[0]).dtype), shape)


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
        if part and (len(part.nodes), len(part.model.graph.input)) < (len(case.nodes), len(case.model.graph.input)):
            return _rewired(fewest_nodes(part, attempt), attempt)
    return case


def _rewirings(case: Case) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield tensors, and what they may be read instead of: the result of a node that reads them, or an input."""
    inputs, made = {tensor.name for tensor in case.model.graph.input}, list[str]()
    for node in case.nodes:
        yield from ((name, node.output) for name in node.input if name)
        yield from ((source, [name]) for name in node.input if name in inputs for source in reversed(made))
        made += node.output


def fewest_nodes(case: Case, attempt: Attempt) -> Case:
    """Leave out nodes as long as the fault stays."""
    tried: dict[tuple[int, ...], Case | None] = {}

    def is_enough(units: Sequence[int]) -> bool:
        tried[tuple(units)] = part = attempt(partial(case.part, units))
        return part is not None

    return tried.get(tuple(fewest(range(len(case.units)), is_enough))) or case
