"""Add constants and nodes to a graph, under names that it does not have yet."""

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginery.core.errors import EngineryError
from enginery.core.text import in_one_line
from enginery.graph.onnx_file import opset_of
from enginery.graph.passes.find import names_in_use, unused_name


class Additions:
    def __init__(self, model: ir.Model) -> None:
        self._graph, self._taken = model.graph, names_in_use(model)

    def constant(self, name: str, array: NDArray[np.generic]) -> ir.Value:
        name = unused_name(name, self._taken)
        value = ir.val(name, const_value=ir.tensor(array, name=name))
        self._graph.initializers.add(value)
        return value

    def node(
        self, op_type: str, inputs: list[ir.Value], *outputs: str, domain: str = "", **attributes: int | list[int]
    ) -> ir.Node:
        """Return a node, which the caller puts into its place."""
        names = [unused_name(name, self._taken) for name in outputs]
        return ir.node(op_type, inputs, attributes, domain=domain, outputs=list(map(ir.val, names)), name=names[0])


def at_opset(model: onnx.ModelProto, oldest: int) -> onnx.ModelProto:
    """Return the graph with no older version of ONNX's operators than that."""
    if opset_of(model) >= oldest:
        return model
    try:
        return onnx.version_converter.convert_version(model, oldest)
    except Exception as error:  # ONNX's exceptions share no base class
        raise EngineryError(f"the graph cannot be raised to opset {oldest}: {in_one_line(error)}") from None
