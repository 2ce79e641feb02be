"""Say what stays in floats: what a user keeps, what eight bits cannot hold, and what a quantized graph leaves."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from math import prod

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.files import Record
from enginewright.core.params.precisions import Keep, Rest
from enginewright.core.text import counted
from enginewright.data.feeds import Feeds
from enginewright.graph.shapes import Shapes, as_ir, shapes_for
from enginewright.precision.dialect import Dialect
from enginewright.precision.fusion import ACTIVATIONS, readers_of
from enginewright.precision.placement import (
    PRODUCTS,
    axes_of,
    constant_at,
    is_average,
    is_depthwise,
    products_of_activations,
)

LARGEST_FLOAT16 = float(np.finfo(np.float16).max)
SMALLEST_FLOAT16_SCALE = 2.0**-20  # below it, float16 has fewer than five bits left
OVERFLOWS = "this CPU adds products of two activations in 16 bits, which overflow"
OF_TOKENS = {"LayerNormalization", "RMSNormalization", "SkipLayerNormalization"}
NORMALIZATIONS = OF_TOKENS | {"GroupNormalization"}
PASSED_ON = {"Cast", "Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Dropout"}
BETWEEN_FACTORS = ACTIVATIONS | PASSED_ON | {"Expand", "Flatten"}
# Before a normalization, Swin joins four neighbours to one token, and ConvNeXt takes the mean of all places.
STREAM = {"Add", "Concat", "GlobalAveragePool", "ReduceMean", "Slice", "Split"} | PASSED_ON
SCORES = {"Add", "Sub", "Mul", "Div", "Where"} | PASSED_ON  # between a product of matrices and its Softmax


def kept_nodes(keep: Keep, model: onnx.ModelProto) -> set[str]:
    """Return the names of the nodes that the user keeps in high precision."""
    return {
        node.name
        for node in model.graph.node
        if node.op_type in keep.op_types or any(re.fullmatch(pattern, node.name) for pattern in keep.nodes)
    }


def require_kept_exist(keep: Keep, model: onnx.ModelProto) -> None:
    """Refuse operators and nodes that the graph lacks, since a misspelt one would silently keep nothing."""
    types, names = {node.op_type for node in model.graph.node}, [node.name for node in model.graph.node]
    for op_type in keep.op_types:
        if op_type not in types:
            raise EnginewrightError(f"keep.op_types: the graph has no {op_type}; it has {', '.join(sorted(types))}")
    for pattern in keep.nodes:
        if not any(re.fullmatch(pattern, name) for name in names):
            raise EnginewrightError(
                f"keep.nodes: no node of the graph is named '{pattern}', such as {', '.join(names[:3])}"
            )


def nodes_in_floats(
    precision: str, model: onnx.ModelProto, amax: Mapping[str, float], dialect: Dialect, rest: Rest
) -> dict[str, str]:
    """Return the nodes that int8 or fp8 leaves in the type `rest`, each with the reason: eight bits cannot hold them,
    the machine cannot calculate with them, or float16 cannot hold the scale of a tensor that they read."""
    found: dict[str, str] = {}
    if precision == "int8" and dialect.largest_weight < PRECISIONS["int8"].largest:
        found = dict.fromkeys(products_of_activations(model), OVERFLOWS)
    if precision == "int8" and dialect.compiler == "tensorrt":
        found |= slow_in_bytes(model)
    found |= nodes_beyond_int8(model, amax)
    if rest == "fp16":  # an example are ConvNeXt's branches, which are multiplied by 1e-6 before training
        largest, why = PRECISIONS[precision].largest, "it cannot hold the scale of what the node reads"
        tiny = {name for name, value in amax.items() if value / largest <= SMALLEST_FLOAT16_SCALE}
        found |= {node.name: why for node in model.graph.node if tiny.intersection(node.input)}
    return found


def slow_in_bytes(model: onnx.ModelProto) -> dict[str, str]:
    """Return what TensorRT computes no faster in bytes. On an H200, 10.6 ran each depthwise convolution in float16 all
    the same, behind a rounding of its own; 8.6 refused one (github.com/NVIDIA/TensorRT/issues/4060). Squeezing and
    exciting takes hardly any time, and four roundings as much."""
    found = dict[str, str]()
    for node in as_ir(model).graph:
        if is_depthwise(node):
            found[node.name or ""] = "TensorRT 10.6 computes a depthwise convolution in floats all the same"
        if is_average(node):
            found |= dict.fromkeys(_making_factors(node), "it makes factors of channels, which is hardly any work")
    return found


def _making_factors(average: ir.Node) -> list[str]:
    """Name what averages an image, and the products that make factors of that by which this very image is multiplied;
    nothing where it leads elsewhere."""
    branch, is_multiplied = [average], False
    for node in branch:  # which grows
        for reader in readers_of(node):
            if reader.op_type == "Mul" and average.inputs[0] in reader.inputs:
                is_multiplied = True
            elif reader.op_type not in BETWEEN_FACTORS | (PRODUCTS if constant_at(reader) is not None else set()):
                return []
            elif reader not in branch:
                branch.append(reader)
    is_returned = any(value.is_graph_output() for node in branch for value in node.outputs)
    found = [node.name or "" for node in branch if node.op_type not in BETWEEN_FACTORS]
    return found if is_multiplied and not is_returned else []


def nodes_beyond_int8(model: onnx.ModelProto, amax: Mapping[str, float]) -> dict[str, str]:
    """Return the nodes that eight bits cannot hold, found by the pattern of the graph, whatever the model is called."""
    graph, found = ir.from_proto(model).graph, dict[str, str]()
    for node in graph:
        tensors = [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]
        if any(amax.get(name, 0.0) > LARGEST_FLOAT16 for name in tensors):
            found[node.name or ""] = "its numbers reach beyond float16, as those of a mask do"
    for node in graph:
        square = _averaged_square(node)
        if square:
            found[node.name or ""] = "it averages squares, whose range is that of the numbers squared"
        if node.op_type == "Softmax":
            names, why = _before(node, SCORES), "it makes the scores of a Softmax"
        # A LayerNorm in parts begins with the mean over the last axis.
        elif square or node.op_type in NORMALIZATIONS or (node.op_type == "ReduceMean" and axes_of(node) == [-1]):
            names, why = _before(square or node, STREAM), "it is part of what is normalized later"
        else:
            continue
        found = dict.fromkeys(names, why) | found
    found |= {node.name or "": "it only puts numbers in their places" for node in graph if _places(node)}
    streams = [node.name or "" for node in graph if _adds_normalized(node)]
    others = dict.fromkeys(streams, "it adds to a stream that nothing normalizes")
    return others | dict.fromkeys(nodes_making_rows(model), "it makes rows of numbers, as of boxes") | found


def _maker(value: ir.Value | None) -> ir.Node | None:
    return value.producer() if value is not None else None


def _before(node: ir.Node, op_types: set[str]) -> Iterator[str]:
    """Yield the nodes of these operators that lead to a node through nothing else."""
    waiting, seen = list(node.inputs[:1]), set[ir.Node]()
    while waiting:
        maker = _maker(waiting.pop())
        if maker is not None and maker.op_type in op_types and maker not in seen:
            seen.add(maker)
            yield maker.name or ""
            waiting += maker.inputs


def _averaged_square(node: ir.Node) -> ir.Node | None:
    """Return what squares the numbers of which the node takes the mean, with which an RMSNorm in parts begins."""
    maker = _maker(node.inputs[0]) if node.op_type == "ReduceMean" else None
    if maker is None or len(maker.inputs) != 2:
        return None
    power = constant_at(maker) if maker.op_type == "Pow" else None
    is_second_power = power is not None and bool(np.all(power.numpy() == 2))
    return maker if is_second_power or (maker.op_type == "Mul" and maker.inputs[0] is maker.inputs[1]) else None


def _places(node: ir.Node) -> bool:
    """Tell whether it is a transposed convolution whose kernels hold a single one each."""
    weights = constant_at(node) if node.op_type == "ConvTranspose" else None
    kernels = np.zeros((1, 1)) if weights is None else weights.numpy().reshape(weights.shape.numpy()[0], -1)
    return bool(kernels.max() == 1 and np.all(np.count_nonzero(kernels, axis=1) == 1))


def _adds_normalized(node: ir.Node) -> bool:
    """Tell whether it adds a branch that was normalized, as in Swin V2, whose products read the stream itself."""
    if node.op_type != "Add" or any(constant_at(node, index) is not None for index in (0, 1)):
        return False
    return any(maker is not None and maker.op_type in OF_TOKENS for maker in map(_maker, node.inputs))


def nodes_making_rows(model: onnx.ModelProto) -> list[str]:
    """Return the nodes after all products that make an output of three axes: rows of numbers. Those of a detector are
    corners of boxes, in pixels: 256 steps are pixels apart, as are numbers in bf16 from 512 on."""
    graph = ir.from_proto(model).graph
    leads_to_product = set[ir.Value | None]()
    for node in reversed(graph):
        if node.op_type in PRODUCTS or leads_to_product.intersection(node.outputs):
            leads_to_product.update(node.inputs)
    found: dict[ir.Node, None] = {}
    waiting: list[ir.Value | None] = [output for output in graph.outputs if len(output.shape or ()) == 3]
    while waiting:
        maker = _maker(waiting.pop())
        is_last = maker is not None and maker.op_type not in PRODUCTS and leads_to_product.isdisjoint(maker.outputs)
        if maker is not None and is_last and maker not in found:
            found[maker] = None
            waiting += maker.inputs
    return [node.name or "" for node in found]


def nodes_adding_scattered(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """Return the nodes that add or multiply numbers at places that an index tells, as those of the edges of a graph
    network. Any number may meet at a place, and ONNX Runtime's CPU provider cannot do it in float16."""
    scattering = [node for node in model.graph.node if node.op_type in ("ScatterElements", "ScatterND")]
    return [node for node in scattering if any(a.name == "reduction" and a.s != b"none" for a in node.attribute)]


RECURRENT = ("GRU", "LSTM", "RNN")
PRODUCTS_PER_NUMBER = 16  # that a CPU or GPU multiplies and adds while it writes one number to memory


def shares_of_work(model: onnx.ModelProto, layers: Collection[str], sample: Feeds) -> dict[str, float]:
    """Return the share of the work in floats of all these layers that each has, for a sample of these sizes. It is
    estimated from the graph alone, so that the answer is the same everywhere."""
    shapes = shapes_for(model, sample)
    constants = {tensor.name for tensor in model.graph.initializer}
    work = {}
    for node in [node for node in model.graph.node if node.name in layers]:
        numbers = prod(shapes.get(node.output[0], ())[1:])  # of one sample
        work[node.name] = products_of(node, shapes, constants) + PRODUCTS_PER_NUMBER * max(1, numbers)
    return {name: each / sum(work.values()) for name, each in work.items()}


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


FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
MATTERS = 0.05  # of all weights or operations: less is not worth a word


class Left(Record):
    """What nodes of one kind leave in floats."""

    kind: str
    weights: float  # their share of all weights
    operations: float  # their share of all products of two numbers
    count: int
    names: tuple[str, ...]  # of the nodes and of what they return: an engine's layers are called after either


class Conversion(Record):
    """What the stage convert made."""

    precision: str
    opset: int
    nodes: dict[str, int]
    floats: tuple[Left, ...] = ()  # what a quantized graph leaves there
    unfused: tuple[str, ...] = ()  # sentences, where the model had Q/DQ nodes of its own


def left_in_floats(model: onnx.ModelProto, sample: Feeds) -> tuple[Left, ...]:
    """Return what reads no rounded value, if it has weights or multiplies, the kind with most weights first."""
    graph, shapes = model.graph, shapes_for(model, sample)
    weights = {each.name: prod(each.dims) for each in graph.initializer if each.data_type in FLOATS}
    in_bytes = {each.name: prod(each.dims) for each in graph.initializer if each.data_type == TensorProto.INT8}
    rounded, constants = set[str](), {each.name for each in graph.initializer}
    total_weights = total_products = 0
    found: dict[str, list[tuple[onnx.NodeProto, int, int]]] = {}
    for node in graph.node:  # which come in the order of execution
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            if node.op_type == "DequantizeLinear":
                rounded.update(node.output)
            if node.input[0] in constants:
                constants.update(node.output)
                total_weights += prod(shapes.get(node.input[0], ()))
            continue
        if node.op_type == "Gather" and node.input[0] in in_bytes:
            total_weights += in_bytes.pop(node.input[0])
        reads_rounded = not rounded.isdisjoint(node.input)
        if reads_rounded and node.op_type in PASSED_ON:
            rounded.update(node.output)
        held = sum(weights.pop(name, 0) for name in dict.fromkeys(node.input))
        products = products_of(node, shapes, constants)
        total_weights, total_products = total_weights + held, total_products + products
        if not reads_rounded and (held or products):
            found.setdefault(_kind(node, constants), []).append((node, held, products))
    rows = (
        Left(
            kind=kind,
            weights=sum(held for _, held, _ in nodes) / max(total_weights, 1),
            operations=sum(products for *_, products in nodes) / max(total_products, 1),
            count=len(nodes),
            names=tuple(name for node, *_ in nodes for name in dict.fromkeys((node.name, *node.output)) if name),
        )
        for kind, nodes in found.items()
    )
    return tuple(sorted(rows, key=lambda row: (-row.weights, -row.operations, row.kind)))


def floats_in_words(left: Iterable[Left]) -> str | None:
    """Return what is in floats in one sentence without its stop, or None where that is little."""
    rows = list(left)
    weights, operations = sum(row.weights for row in rows), sum(row.operations for row in rows)
    if max(weights, operations) <= MATTERS:
        return None
    most = [row for row in rows if max(row.weights, row.operations) > MATTERS]
    kinds = ", ".join(f"{counted(row.count, row.kind)} ({row.weights:.0%}, {row.operations:.0%})" for row in most)
    why = "; no compiler here runs a recurrent layer in bytes" if any(row.kind in RECURRENT for row in most) else ""
    named = f": {kinds}" if kinds else ""
    return f"{weights:.0%} of the weights and {operations:.0%} of the operations stay in floats{named}{why}"


def smaller_in_words(precision: str, left: Iterable[Left]) -> str | None:
    """Say how much smaller w8 is where most of the weights are what it alone has in bytes, or return None."""
    rows = list(left)
    packed = {row.kind: row for row in rows if row.kind in ("embedding", "Gemm", "MatMul")}
    share, floats = sum(row.weights for row in packed.values()), sum(row.weights for row in rows)
    if share <= 0.5:
        return None
    kinds = " and ".join(counted(row.count, kind) for kind, row in packed.items() if row.weights > MATTERS)
    times = (1 + 3 * floats) / (1 + 3 * (floats - share))  # of floats, each of which takes three bytes more
    return (
        f"{share:.0%} of the weights are in {kinds}, which {precision} leaves in floats: `precisions: {{w8: {{from: "
        f"simplified}}}}` makes an engine about {times:.1f} times smaller than {precision}'s"
    )


def doubt_in_words(precision: str, left: Iterable[Left]) -> str | None:
    """Return what to do where most operations are in floats, or None."""
    operations = sum(row.operations for row in left)
    if operations <= 0.5:
        return None
    return (
        f"{precision} keeps {operations:.0%} of the operations in floats, and may be no faster than fp32: "
        "the precision best mixes both and takes what is faster, see docs/explanation/best.md"
    )


def _kind(node: onnx.NodeProto, constants: set[str]) -> str:
    if node.op_type == "Gather" and node.input[0] in constants:
        return "embedding"
    if node.op_type == "MatMul" and constants.isdisjoint(node.input):
        return "attention product"
    return node.op_type if node.op_type in (*PRODUCTS, *RECURRENT) else "other"
