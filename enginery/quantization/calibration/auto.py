"""Choose the range of each tensor by what its rounding costs the outputs: `calibration.method: auto`."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from enginery.core.params.calibration import AUTO, METHODS
from enginery.data.feeds import Feeds
from enginery.graph.as_written import open_as_written
from enginery.quantization.calibration.cache import LEVELS, TINY

ROUNDED = {  # operators that read int8 where a compiler has a kernel for it
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Mul", "HardSigmoid", "HardSwish", "Concat",
    "AveragePool", "GlobalAveragePool", "MaxPool", "ReduceMean",
}  # fmt: skip
WORTH_TRYING = 0.01  # the least difference between the logarithms of two ranges
WORTH_TAKING = 0.005  # the least gain, as a share of the cost, since chance makes smaller ones on a few samples
ZERO = "enginery.zero"

Ranges = Mapping[str, float]


class Choice(NamedTuple):
    amax: dict[str, float]
    methods: dict[str, str]  # by tensor
    costs: dict[str, float]  # the relative error of the outputs if all tensors took one method, and as chosen


def choose_by_outputs(
    graph: onnx.ModelProto, by_method: Mapping[str, Ranges], choosing: Feeds, checking: Feeds, tries: int
) -> Choice:
    """Take the best method for all tensors, and then a better one for each tensor that has one.

    So many ranges are tried, those first that differ most. What was chosen on some samples must prove itself on others.
    If it does not, the best method stays.
    """
    tensors = [name for name in tensors_to_round(graph) if name in by_method[METHODS[0]]]
    trial = Trial(graph, tensors, choosing)
    costs = {method: trial.cost(by_method[method]) for method in METHODS}
    best = min(costs, key=lambda method: costs[method])
    amax, methods, cost = dict(by_method[best]), dict.fromkeys(by_method[best], best), costs[best]
    for name, method in _most_different(tensors, by_method, best)[:tries]:
        wanted = by_method[method][name]
        tried = trial.cost(amax | {name: wanted})
        if tried < (1 - WORTH_TAKING) * cost:
            amax[name], methods[name], cost = wanted, method, tried
    check = Trial(graph, tensors, checking)
    costs = {method: check.cost(by_method[method]) for method in METHODS} | {AUTO: check.cost(amax)}
    best = min(costs, key=lambda method: costs[method])
    if best == AUTO:
        return Choice(amax, methods, costs)
    return Choice(dict(by_method[best]), dict.fromkeys(by_method[best], best), costs | {AUTO: costs[best]})


def _most_different(tensors: Sequence[str], by_method: Mapping[str, Ranges], best: str) -> list[tuple[str, str]]:
    """Return tensors and methods, ordered by how far the range is from the best method's."""
    differences = {
        (name, method): abs(math.log(max(by_method[method][name], TINY) / max(by_method[best][name], TINY)))
        for name in tensors
        for method in METHODS
    }
    worth_trying = [pair for pair, difference in differences.items() if difference > WORTH_TRYING]
    return sorted(worth_trying, key=lambda pair: -differences[pair])


def tensors_to_round(model: onnx.ModelProto) -> list[str]:
    """Return the float32 tensors that such operators read, without constants."""
    inferred = onnx.shape_inference.infer_shapes(model).graph
    floats = {
        value.name
        for value in (*inferred.input, *inferred.value_info)
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    } - {tensor.name for tensor in inferred.initializer}
    read = (name for node in inferred.node if node.op_type in ROUNDED for name in node.input)
    return [name for name in dict.fromkeys(read) if name in floats]


class Trial:
    """The graph on a few samples, with rounded activations whose scales are inputs."""

    def __init__(self, model: onnx.ModelProto, tensors: Sequence[str], feeds: Feeds) -> None:
        self._tensors, self._feeds = tensors, dict(feeds)
        self._session = open_as_written(with_rounding(model, tensors))
        self._exact: list[NDArray[np.float32]] = open_as_written(model).run(None, self._feeds)

    def cost(self, amax: Ranges) -> float:
        """Return the relative error of a sample's outputs with these ranges, in the mean over samples and outputs.

        The error of all samples at once would be that of the few that a network is least sure of.
        """
        scales = {_scale(name): np.asarray(max(amax[name], TINY) / LEVELS, np.float32) for name in self._tensors}
        outputs = self._session.run(None, self._feeds | scales)
        return float(np.mean([_error(found, exact) for found, exact in zip(outputs, self._exact, strict=True)]))


def _error(found: NDArray[np.float32], exact: NDArray[np.float32]) -> float:
    sizes = [np.linalg.norm(array.reshape(len(array), -1), axis=1) for array in (found - exact, exact)]
    return float(np.mean(sizes[0] / np.maximum(sizes[1], TINY)))


def with_rounding(model: onnx.ModelProto, tensors: Sequence[str]) -> onnx.ModelProto:
    """Return a copy that reads each of these tensors rounded to int8, with a scale that is an input."""
    copy: onnx.ModelProto = onnx.ModelProto.FromString(model.SerializeToString())
    graph = copy.graph
    made = {name for node in graph.node for name in node.output}
    nodes = [node for name in tensors if name not in made for node in _rounding(name)]
    for node in graph.node:
        if node.op_type in ROUNDED:
            node.input[:] = [f"{name}.rounded" if name in tensors else name for name in node.input]
        nodes.append(node)
        nodes += [one for name in node.output if name in tensors for one in _rounding(name)]
    ordered = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]  # the list empties the graph's
    del graph.node[:]
    graph.node.extend(ordered)
    graph.input.extend(helper.make_tensor_value_info(_scale(name), TensorProto.FLOAT, []) for name in tensors)
    graph.initializer.append(numpy_helper.from_array(np.zeros((), np.int8), ZERO))
    return copy


def _rounding(name: str) -> tuple[onnx.NodeProto, onnx.NodeProto]:
    scale, levels = _scale(name), f"{name}.levels"
    return (
        helper.make_node("QuantizeLinear", [name, scale, ZERO], [levels]),
        helper.make_node("DequantizeLinear", [levels, scale, ZERO], [f"{name}.rounded"]),
    )


def _scale(name: str) -> str:
    return f"{name}.scale"
