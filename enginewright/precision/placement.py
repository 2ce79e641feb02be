"""Find the tensors that a CPU's compiler should read as bytes. For TensorRT, ModelOpt does that."""

from collections.abc import Collection, Iterator
from typing import Any

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from enginewright.graph.shapes import as_ir

PRODUCTS = {"Conv", "ConvTranspose", "Gemm", "MatMul"}
AVERAGES = {"AveragePool", "GlobalAveragePool", "ReduceMean"}
PASSED_ON = {  # what these operators return are numbers that they read
    "Concat", "Flatten", "Identity", "MaxPool", "Pad", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
}  # fmt: skip
BEFORE_PRODUCTS = PASSED_ON | {"Add", "BatchNormalization", "Clip", "LeakyRelu", "Mul", "PRelu", "Relu"}
NARROW = 32  # rows or columns
PIXEL = 16  # an image has fewer channels
FEW_WEIGHTS = 0.005  # of all: 0.0002 in Swin-T, 0.003 in ViT-L/16, 0.007 in ViT-B/16
HEADS_SIDE_BY_SIDE = [0, 2, 1, 3]  # how their axes are transposed
FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)

Reader = tuple[ir.Node, int]  # a node and the number of its input
Group = dict[ir.Value, list[Reader]]  # tensors that share a scale, each with those that read it as bytes


class Placement:
    """Find what is read as bytes: operands of products and of sums, what is averaged, and what is joined.

    A tensor that is only passed on, as by a MaxPool, is rounded before that, so that the compiler moves bytes.
    """

    def __init__(self, model: ir.Model, kept: Collection[str] = (), exact_sums: bool = True) -> None:
        """Leave the nodes of these names in floating point, and with `exact_sums` what a Conv makes for a sum alone."""
        self._graph = model.graph
        nodes = [node for node in model.graph if node.name not in kept and not node.domain]
        products = set(_without_patches([node for node in model.graph if _is_product(node)]))
        self.products = [node for node in nodes if node in products]
        self._passing = {node for node in nodes if _passes_on(node) and not _ends_attention(node)}
        self._gated = {node for node in nodes if node.op_type == "Mul" and _reads_activations(node)}
        self.arithmetic = [node for node in nodes if node in products or is_sum(node) or is_average(node)]
        self._operands = {
            (node, index)
            for node in self.arithmetic
            for index, value in enumerate(node.inputs[: 1 if node.op_type in AVERAGES else 2])
            if _is_activation(value)
        }
        if exact_sums:
            self._operands.difference_update(_made_for_sums(model.graph))
        self.biases = {node: bias for node in self.products if (bias := _bias_behind(node))}
        self._before_products: dict[ir.Value, bool] = {}
        self._only_bytes: dict[ir.Value, bool] = {}

    def groups(self) -> list[Group]:
        """Return the tensors to round. Those that a Concat or the like brings together share a scale."""
        found: list[tuple[Group, set[ir.Node]]] = []  # each with the nodes that pass it on
        for value in [*self._graph.inputs, *(value for node in self._graph for value in node.outputs)]:
            readers = [(node, index) for node, index in value.uses() if self._reads_bytes(node, index)]
            maker = value.producer()
            if not readers or (maker in self._passing and self._reads_bytes(maker, 0)):  # it is rounded before
                continue
            # A product of two activations reads the bytes that others read, which spares a copy in floating point. For
            # its own sake it is not worth rounding.
            readers += [(node, index) for node, index in value.uses() if node in self._gated]
            group, nodes = {value: readers}, set(self._passing_on(value))
            for joined in [pair for pair in found if nodes & pair[1]]:
                found.remove(joined)
                group, nodes = joined[0] | group, joined[1] | nodes
            found.append((group, nodes))
        return [group for group, _ in found]

    def _reads_bytes(self, node: ir.Node, index: int) -> bool:
        """Tell whether the node calculates with this input, joins it to others, or passes it on to such nodes alone."""
        if (node, index) in self._operands:
            return True
        if node not in self._passing or not _is_activation(node.inputs[index]):
            return False
        if node.op_type == "Concat" and self._leads_to_products(node.outputs[0]):
            return True
        return all(self._has_only_bytes(value) for value in node.outputs if value.uses() or value.is_graph_output())

    def _has_only_bytes(self, value: ir.Value) -> bool:
        if value not in self._only_bytes:
            read = not value.is_graph_output() and all(self._reads_bytes(*reader) for reader in value.uses())
            self._only_bytes[value] = read
        return self._only_bytes[value]

    def _leads_to_products(self, value: ir.Value) -> bool:
        """Tell whether all of it ends in products, as in a DenseNet. What is joined to be returned stays exact."""
        if value not in self._before_products:
            self._before_products[value] = not value.is_graph_output() and all(
                (node, index) in self._operands
                or (node.op_type in BEFORE_PRODUCTS and all(map(self._leads_to_products, node.outputs)))
                for node, index in value.uses()
            )
        return self._before_products[value]

    def _passing_on(self, value: ir.Value) -> Iterator[ir.Node]:
        for node, index in value.uses():
            if node in self._passing and self._reads_bytes(node, index):
                yield node
                for output in node.outputs:
                    yield from self._passing_on(output)


def arithmetic_nodes(model: onnx.ModelProto, kept: Collection[str]) -> list[str]:
    """Return the names of the nodes that could calculate with bytes."""
    placement = Placement(as_ir(model), kept)
    return [node.name or "" for node in placement.arithmetic]


def read_by_channel(group: Group) -> bool:
    """Tell whether depthwise convolutions alone read it: each channel may have a scale of its own then."""
    return len(group) == 1 and all(is_depthwise(node) for each in group.values() for node, _ in each)


def is_depthwise(node: ir.Node) -> bool:
    weights = constant_at(node) if node.op_type == "Conv" else None
    return weights is not None and node.attributes.get_int("group", 1) > 1 and weights.shape.numpy()[1] == 1


def tensors_by_channel(model: onnx.ModelProto) -> list[str]:
    """Return the names of the tensors that depthwise convolutions alone read as bytes."""
    groups = Placement(as_ir(model)).groups()
    return [value.name or "" for group in groups if read_by_channel(group) for value in group]


def products_of_activations(model: onnx.ModelProto) -> list[str]:
    """Return the names of the products that could calculate with bytes and have no constant weights."""
    products = Placement(as_ir(model)).products
    return [node.name or "" for node in products if _is_activation(node.inputs[1])]


def ends_of_attention(model: onnx.ModelProto, products: Collection[str]) -> list[str]:
    """Return the names of the products that weigh values by the scores which these products compute. TensorRT fuses
    both products of an attention, or none."""
    found = []
    for node in ir.from_proto(model).graph:
        before = node.inputs[0] if node.op_type == "MatMul" and any(map(_are_shares, node.inputs)) else None
        while before is not None and (maker := before.producer()) is not None and maker.op_type != "MatMul":
            before = maker.inputs[0]
        if before is not None and maker is not None and maker.name in products:
            found.append(node.name or "")
    return found


def _is_activation(value: ir.Value | None) -> bool:
    return value is not None and value.dtype in FLOATS and value.const_value is None


def _reads_activations(node: ir.Node) -> bool:
    return all(map(_is_activation, node.inputs))


def _is_product(node: ir.Node) -> bool:
    """Tell whether compilers have a kernel in bytes for it: its weights are constant, or it has none."""
    if node.op_type not in PRODUCTS or not _is_activation(node.inputs[0]):
        return False
    if (weights := constant_at(node)) is not None:
        return weights.dtype in FLOATS and len(weights.shape) > 1
    factor = node.inputs[1]
    is_of_activations = node.op_type == "MatMul" and _is_activation(factor) and not any(map(_are_shares, node.inputs))
    return is_of_activations and not _is_narrow(factor)


def constant_at(node: ir.Node, index: int = 1) -> ir.TensorProtocol | None:
    """Return what an input of a node always is, such as its weights."""
    value = node.inputs[index] if index < len(node.inputs) else None
    return value.const_value if value is not None else None


def array_of(value: ir.Value | None) -> NDArray[Any]:
    """Return the numbers of a constant."""
    assert value is not None
    assert value.const_value is not None
    return value.const_value.numpy()


def _without_patches(products: list[ir.Node]) -> list[ir.Node]:
    """Leave out the Conv with which a vision transformer begins, if it has few of the weights: then it is hardly any
    work, and all that the image loses by rounding goes on to the end."""
    sizes = {node: weights.size if (weights := constant_at(node)) is not None else 0 for node in products}
    few = FEW_WEIGHTS * sum(sizes.values())
    return [node for node in products if sizes[node] >= few or not _cuts_patches(node)]


def _cuts_patches(node: ir.Node) -> bool:
    """Tell whether it reads each pixel of an image once."""
    weights = constant_at(node)
    if node.op_type != "Conv" or weights is None:
        return False
    of_group, *kernel = weights.shape.numpy()[1:]
    channels, strides = of_group * node.attributes.get_int("group", 1), node.attributes.get_ints("strides", ())
    return channels < PIXEL and kernel == list(strides) != [1] * len(kernel)


def _are_shares(value: ir.Value | None) -> bool:
    """Tell whether a Softmax made it: most shares are a few steps of a byte, and what they weigh loses by that."""
    maker = value.producer() if value is not None else None
    return maker is not None and maker.op_type == "Softmax"


def _ends_attention(node: ir.Node) -> bool:
    """Tell whether it puts the heads of an attention side by side. OpenVINO's kernel of an attention takes such a
    Transpose in, unless there is a rounding before it, or between it and the Reshape behind."""
    if node.op_type == "Reshape" and node.inputs[0] is not None and (before := node.inputs[0].producer()):
        return before.op_type == "Transpose" and _ends_attention(before)
    product = node.inputs[0].producer() if node.op_type == "Transpose" and node.inputs[0] is not None else None
    if product is None or list(node.attributes.get_ints("perm", ())) != HEADS_SIDE_BY_SIDE:
        return False
    return product.op_type == "MatMul" and any(map(_are_shares, product.inputs))


def _is_narrow(matrix: ir.Value | None) -> bool:
    """Tell whether it is known to have few rows or columns, as in the heads of a linear attention. A product with a
    matrix of activations gains nothing by bytes then, which must be made first."""
    sizes = list(matrix.shape)[-2:] if matrix is not None and matrix.shape is not None else []
    return any(isinstance(size, int) and size < NARROW for size in sizes)


def _bias_behind(product: ir.Node) -> Reader | None:
    """Return the Add that alone reads a MatMul with weights, and which of its inputs is a number for each column."""
    weights, reader = constant_at(product), only_reader(product.outputs[0])
    if product.op_type != "MatMul" or weights is None or reader is None or reader[0].op_type != "Add":
        return None
    columns, add, place = weights.shape.numpy()[1:], reader[0], 1 - reader[1]
    bias = constant_at(add, place)
    return (add, place) if bias is not None and bias.shape.numpy()[-1:] == (bias.size,) == columns else None


def has_rows(node: ir.Node) -> bool:
    """Tell whether each output of a product of matrices has a row of the weights, as PyTorch has them, not a column."""
    return node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))


def is_sum(node: ir.Node) -> bool:
    """Tell whether it adds two activations, as a residual connection does."""
    return node.op_type == "Add" and _reads_activations(node)


def is_average(node: ir.Node) -> bool:
    """Tell whether it averages each channel of an image over its pixels."""
    value = node.inputs[0] if node.op_type in AVERAGES else None
    if value is None or not _is_activation(value) or value.shape is None:
        return False
    rank = len(value.shape)
    return node.op_type != "ReduceMean" or (
        rank > 2 and sorted(a % rank for a in axes_of(node)) == list(range(2, rank))
    )


def _made_for_sums(graph: ir.Graph) -> Collection[Reader]:
    """Find the operand of each sum that a Conv makes for it alone, the later one where there are two. The kernel of the
    Conv adds the other operand before it rounds, and takes up to 1.2 times as long if it must round this one, too."""
    found: dict[ir.Node, Reader] = {}
    for conv in graph:
        reader = only_reader(conv.outputs[0]) if conv.op_type == "Conv" and _is_product(conv) else None
        if reader and is_sum(reader[0]):
            one, other = (value.shape if value is not None else None for value in reader[0].inputs)
            if one == other:
                found[reader[0]] = reader
    return found.values()


def only_reader(value: ir.Value) -> Reader | None:
    """Return the node that alone reads a value which is not returned, and the number of its input."""
    uses = () if value.is_graph_output() else tuple(value.uses())
    return (uses[0].node, uses[0].idx) if len(uses) == 1 else None


def axes_of(node: ir.Node) -> list[int]:
    axes = constant_at(node)
    return axes.numpy().tolist() if axes is not None else list(node.attributes.get_ints("axes", ()))


def _passes_on(node: ir.Node) -> bool:
    """Tell whether it returns numbers of its inputs. Those beside the first, such as a shape, are no floats."""
    if node.op_type == "Concat":
        return _reads_activations(node)
    return node.op_type in PASSED_ON and _is_activation(node.inputs[0])
