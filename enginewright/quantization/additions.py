"""Add constants and nodes to a graph, under names that it does not have yet."""

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.graph.passes.find import names_in_use, unused_name


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
