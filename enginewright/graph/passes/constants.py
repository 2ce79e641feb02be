"""Add constants to a graph."""

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike


def add_constant(model: ir.Model, reader: ir.Node, name: str, array: ArrayLike) -> ir.Value:
    """Add a constant to the graph of the node that is to read it. Python's integers become int64."""
    graph = reader.graph
    assert graph is not None
    tensor = ir.tensor(np.asarray(array), name=name)
    if any(graph is function.graph for function in model.functions.values()):  # a function holds no initializers
        constant = ir.node("Constant", [], {"value": tensor}, outputs=[ir.val(name)], name=name)
        reader.prepend(constant)
        return constant.outputs[0]
    value = ir.val(name, const_value=tensor)
    graph.initializers.add(value)
    return value
