"""A global average pool leaves PyTorch's exporter as a mean and a Gather of every element, in order: a copy by strides.

AutoCast keeps that Gather in float32, with casts around it, since the indices that it is given are large numbers.
"""

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper


def drop_strided_copies(graph: onnx.GraphProto) -> None:
    """Where it is certain that the indices are all there are, in order, the copy becomes a Reshape."""
    reader = _Reader(graph)
    for node in graph.node:
        copied = reader.copied_by(node) if node.op_type == "Gather" else None
        if copied:
            source, shape = copied
            name = f"{node.output[0]}.shape"
            graph.initializer.append(numpy_helper.from_array(np.array(shape, np.int64), name))
            node.CopyFrom(helper.make_node("Reshape", [source, name], list(node.output), node.name))


class _Reader:
    def __init__(self, graph: onnx.GraphProto) -> None:
        inputs = {tensor.name: tensor.type.tensor_type.shape.dim for tensor in graph.input}
        self._batches = {name: shape[0] for name, shape in inputs.items() if shape}
        self._constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        self._makers = {name: node for node in graph.node for name in node.output}
        self._shapes = {value.name: value.type.tensor_type.shape.dim for value in graph.value_info}

    def copied_by(self, node: onnx.NodeProto) -> tuple[str, list[int]] | None:
        """Gather(Reshape(source, [-1]), images * size + [0, 1, ... size - 1]): the source, and the copy's shape."""
        flat, summed = self._made_by(node.input[0], "Reshape"), self._made_by(node.input[1], "Add")
        offsets, column = self._constant_and_other(summed)
        size, numbers = self._constant_and_other(
            self._made_by(next(iter(self._made_by(column, "Unsqueeze")), ""), "Mul")
        )
        if not flat or offsets is None or size is None:
            return None
        is_all_in_order = (
            all(attribute.i == 0 for attribute in node.attribute)  # its only one is the axis
            and self._is(flat[1], -1)
            and size.ravel().tolist() == [offsets.size]
            and np.array_equal(offsets.ravel(), np.arange(offsets.size))
            and offsets.shape[0] == 1
            and self._are_as_many(self._made_by(numbers, "Range"), flat[0], offsets.size)
        )
        return (flat[0], [-1, *offsets.shape[1:]]) if is_all_in_order else None

    def _made_by(self, name: str, op_type: str) -> Sequence[str]:
        """The inputs of the node that makes a tensor, if it is of that type."""
        node = self._makers.get(name)
        return node.input if node is not None and node.op_type == op_type else ()

    def _constant_and_other(self, names: Sequence[str]) -> tuple[NDArray[np.generic] | None, str]:
        constants = [self._constants[name] for name in names if name in self._constants]
        others = [name for name in names if name not in self._constants]
        return (constants[0], others[0]) if len(constants) == len(others) == 1 else (None, "")

    def _is(self, name: str, value: int) -> bool:
        return name in self._constants and self._constants[name].ravel().tolist() == [value]

    def _are_as_many(self, range_of: Sequence[str], source: str, size: int) -> bool:
        """0, 1, 2 and so on for each image, as far as the first axis of one of the graph's inputs goes."""
        if len(range_of) != 3 or not self._is(range_of[0], 0) or not self._is(range_of[2], 1):
            return False
        asked = self._makers.get(next(iter(self._made_by(range_of[1], "Squeeze")), ""))
        if asked is None or asked.op_type != "Shape" or asked.input[0] not in self._batches:
            return False
        axes = {attribute.name: attribute.i for attribute in asked.attribute}
        batch, *others = self._shapes.get(source, ()) or [None]
        return (
            axes.get("start", 0) == 0
            and axes.get("end") == 1
            and batch == self._batches[asked.input[0]]
            and bool(np.prod([other.dim_value for other in others]) == size)
        )
