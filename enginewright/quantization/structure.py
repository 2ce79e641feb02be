"""Find by the pattern of a graph what eight bits cannot hold, whatever the model is called."""

from collections.abc import Iterator, Mapping

import numpy as np
import onnx
from onnx import numpy_helper

from enginewright.graph.data_apart import array_of

LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
OF_TOKENS = {"LayerNormalization", "RMSNormalization", "SkipLayerNormalization"}
NORMALIZATIONS = OF_TOKENS | {"GroupNormalization"}
PASSED_ON = {"Cast", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Dropout"}
PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
SCATTERING = {"ScatterElements", "ScatterND"}
# Before a normalization, Swin joins four neighbours to one token, and ConvNeXt takes the mean of all places.
STREAM = {"Add", "Concat", "GlobalAveragePool", "ReduceMean", "Slice", "Split"} | PASSED_ON
SCORES = {"Add", "Sub", "Mul", "Div", "Where"} | PASSED_ON  # between a product of matrices and its Softmax


def nodes_beyond_int8(model: onnx.ModelProto, amax: Mapping[str, float]) -> dict[str, str]:
    """Return the nodes that must stay in high precision, each with the reason."""
    nodes = list(model.graph.node)
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {name: node for node in nodes for name in node.output}
    found: dict[str, str] = {}
    for node in nodes:
        if any(amax.get(name, 0.0) > LARGEST_FLOAT16 for name in (*node.input, *node.output)):
            found[node.name] = "its numbers reach beyond float16, as those of a mask do"
    for node in nodes:
        square = _averaged_square(node, made_by, constants)
        if square:
            found[node.name] = "it averages squares, whose range is that of the numbers squared"
        if node.op_type == "Softmax":
            names, why = _before(node, SCORES, made_by), "it makes the scores of a Softmax"
        elif square or node.op_type in NORMALIZATIONS or _begins_normalization(node, constants):
            names, why = _before(square or node, STREAM, made_by), "it is part of what is normalized later"
        else:
            continue
        found = dict.fromkeys(names, why) | found
    found |= dict.fromkeys(_nodes_placing(nodes, constants), "it only puts numbers in their places")
    streams = [node.name for node in nodes if _adds_normalized(node, made_by, constants)]
    others = dict.fromkeys(streams, "it adds to a stream that nothing normalizes")
    return others | dict.fromkeys(nodes_making_rows(model), "it makes rows of numbers, as of boxes") | found


def _nodes_placing(nodes: list[onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]) -> list[str]:
    """Return the transposed convolutions whose kernels hold a single one each."""
    weighted = [node for node in nodes if node.op_type == "ConvTranspose" and node.input[1] in constants]
    kernels = {node.name: array_of(constants[node.input[1]]) for node in weighted}
    return [
        name
        for name, kernel in kernels.items()
        if kernel.max() == 1 and np.all(np.count_nonzero(kernel.reshape(len(kernel), -1), axis=1) == 1)
    ]


def nodes_making_rows(model: onnx.ModelProto) -> list[str]:
    """Return the nodes after all products that make an output of three axes: rows of numbers. Those of a detector are
    corners of boxes, in pixels: 256 steps are pixels apart, as are numbers in bf16 from 512 on."""
    leads_to_product: set[str] = set()  # names of tensors
    for node in reversed(model.graph.node):  # which come in the order of execution
        if node.op_type in PRODUCTS or leads_to_product.intersection(node.output):
            leads_to_product.update(node.input)
    made_by = {name: node for node in model.graph.node for name in node.output}
    found: dict[str, None] = {}
    waiting = [output.name for output in model.graph.output if len(output.type.tensor_type.shape.dim) == 3]
    while waiting:
        node = made_by.get(waiting.pop())
        last = node is not None and node.op_type not in PRODUCTS and not leads_to_product.intersection(node.output)
        if node is not None and last and node.name not in found:
            found[node.name] = None
            waiting += node.input
    return list(found)


def nodes_adding_scattered(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that add or multiply numbers at places that an index tells, as those of the edges of a graph
    network. Any number may meet at a place, and ONNX Runtime's CPU provider cannot do it in float16."""
    return [
        node
        for node in model.graph.node
        if node.op_type in SCATTERING and any(each.name == "reduction" and each.s != b"none" for each in node.attribute)
    ]


def _before(node: onnx.NodeProto, op_types: set[str], made_by: Mapping[str, onnx.NodeProto]) -> Iterator[str]:
    """Yield the nodes of these operators that lead to a node through nothing else."""
    waiting, seen = list(node.input[:1]), set()
    while waiting:
        maker = made_by.get(waiting.pop())
        if maker is not None and maker.op_type in op_types and maker.name not in seen:
            seen.add(maker.name)
            yield maker.name
            waiting += maker.input


def _adds_normalized(
    node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
) -> bool:
    """Tell whether it adds a branch that was normalized, as in Swin V2, whose products read the stream itself."""
    if node.op_type != "Add" or any(name in constants for name in node.input):
        return False
    makers = [made_by.get(name) for name in node.input]
    return any(maker is not None and maker.op_type in OF_TOKENS for maker in makers)


def _begins_normalization(node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto]) -> bool:
    """Tell whether it takes the mean over the last axis, with which a LayerNorm in parts begins."""
    if node.op_type != "ReduceMean":
        return False
    axes = [list(attribute.ints) for attribute in node.attribute if attribute.name == "axes"]
    axes += [numpy_helper.to_array(constants[name]).tolist() for name in node.input[1:] if name in constants]
    return axes == [[-1]]


def _averaged_square(
    node: onnx.NodeProto, made_by: Mapping[str, onnx.NodeProto], constants: Mapping[str, onnx.TensorProto]
) -> onnx.NodeProto | None:
    """Return what squares the numbers of which the node takes the mean, with which an RMSNorm in parts begins."""
    maker = made_by.get(node.input[0]) if node.op_type == "ReduceMean" else None
    if maker is None or len(maker.input) != 2:
        return None
    number, by = maker.input
    is_second_power = maker.op_type == "Pow" and by in constants and bool(np.all(array_of(constants[by]) == 2))
    return maker if is_second_power or (maker.op_type == "Mul" and number == by) else None
