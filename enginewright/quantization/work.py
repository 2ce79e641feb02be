"""Estimate what each layer costs in floating point, from the graph alone, so that the answer is the same everywhere."""

from collections.abc import Collection
from math import prod

import onnx

from enginewright.data.feeds import Feeds
from enginewright.graph.shapes import Shapes, shapes_for

RECURRENT = ("GRU", "LSTM", "RNN")
PRODUCTS_PER_NUMBER = 16  # that a CPU or GPU multiplies and adds while it writes one number to memory


def shares_of_work(model: onnx.ModelProto, layers: Collection[str], sample: Feeds) -> dict[str, float]:
    """Return the share of the work of all these layers that each has, for a sample of these sizes."""
    shapes = shapes_for(model, sample)
    constants = {tensor.name for tensor in model.graph.initializer}
    work = {node.name: _work(node, shapes, constants) for node in model.graph.node if node.name in layers}
    return {name: each / sum(work.values()) for name, each in work.items()}


def _work(node: onnx.NodeProto, shapes: Shapes, constants: Collection[str]) -> int:
    numbers = prod(shapes.get(node.output[0], ())[1:])  # of one sample
    return products_of(node, shapes, constants) + PRODUCTS_PER_NUMBER * max(1, numbers)


def products_of(node: onnx.NodeProto, shapes: Shapes, constants: Collection[str]) -> int:
    """Return how many products of two numbers a node calculates for one sample."""
    output = shapes.get(node.output[0], ())
    operand = shapes.get(node.input[1], ()) if len(node.input) > 1 else ()
    match node.op_type:
        case "Conv":
            return prod(output[2:]) * prod(operand)
        case "ConvTranspose":
            return prod(shapes.get(node.input[0], ())[2:]) * prod(operand)
        case "Gemm" | "MatMul" if node.input[1] in constants:
            return prod(output[1:-1]) * prod(operand)
        case "MatMul":
            return prod(output[1:]) * shapes.get(node.input[0], (1,))[-1]
        case recurrent if recurrent in RECURRENT:  # the weights of inputs and of states, for each step of one sample
            steps = prod(shapes.get(node.input[0], ())[:2])
            return steps * (prod(operand) + prod(shapes.get(node.input[2], ())))
        case _:
            return 0
