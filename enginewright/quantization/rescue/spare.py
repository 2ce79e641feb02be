"""Find the end of a graph that takes no more time in floating point, such as a classifier of few classes."""

from collections.abc import Iterator, Mapping
from math import prod

import onnx

from enginewright.graph.data_apart import bodies_of, with_bodies
from enginewright.quantization.placement import PRODUCTS

LITTLE_WORK, FEW_WEIGHTS = 0.001, 0.01  # of all


def end_of(model: onnx.ModelProto, work: Mapping[str, float]) -> list[str]:
    """Return the layers behind which no other product is, if they are next to no work and hold next to no weights.
    No later layer evens out what they lose by rounding. `work` is the share of each layer that int8 could calculate."""
    before, end = set[str](), list[onnx.NodeProto]()  # tensors that a later product is made of
    for node in reversed(model.graph.node):
        whole = [node, *_inside(node)]
        is_before = not before.isdisjoint(node.output)
        if node.name in work and not is_before:
            end.append(node)
        if is_before or any(each.op_type in PRODUCTS for each in whole):
            before.update(name for each in whole for name in each.input if name)
    weights = {tensor.name: prod(tensor.dims) for tensor in model.graph.initializer}
    held = sum(weights.get(name, 0) for name in {name for node in end for name in node.input})
    is_cheap = sum(work[node.name] for node in end) < LITTLE_WORK and held < FEW_WEIGHTS * sum(weights.values())
    return [node.name for node in end] if is_cheap else []


def _inside(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the bodies of an If or a Loop."""
    for body in bodies_of(node):
        for graph in with_bodies(body):
            yield from graph.node
