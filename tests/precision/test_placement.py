"""Which tensors a CPU reads as bytes, and which of them share a scale."""

import numpy as np
import onnx_ir as ir
import pytest
from support.pass_checks import model_of_text

from enginewright.precision.placement import Placement

IMAGE, MATRIX = "float[batch,4,8,8]", "float[batch,6,4]"
CONSTANTS = {"w": np.ones((4, 4, 1, 1)), "v": np.ones((4, 8, 1, 1)), "m": np.ones((4, 4)), "b": np.ones((4, 1, 1))}
CONSTANTS |= {"l": np.ones((4096, 4, 1, 1))}
CONSTANTS |= {"q": np.ones((4, 4, 2, 2)), "e": np.ones((32, 4)), "h": np.ones((8, 4)), "sizes": np.array([0, 8, 32])}

# The nodes between the input x and the output y; the tensors to round, those that share a scale joined by a plus.
CASES = {
    "a product": ("y = Conv (x, w)", {"x"}),
    "a bias stays": ("c = Conv (x, w) y = Add (c, b)", {"x"}),
    "a residual sum": ("c = Conv (x, w) r = Relu (c) y = Add (r, x)", {"x", "r"}),
    "a sum of what a Conv makes for it": ("c = Conv (x, w) y = Add (c, x)", {"x"}),
    "a sum of a number for each channel": (
        "c = Conv (x, w) p = MaxPool <kernel_shape = [8, 8]> (x) y = Add (c, p)",
        {"x", "c"},
    ),
    "a sum of what others read, too": ("c = Conv (x, w) s = Add (c, x) y = Mul (s, c)", {"x", "c"}),
    "a sum of what two Convs make for it": ("c = Conv (x, w) d = Conv (x, w) y = Add (d, c)", {"x", "c"}),
    "what a MaxPool passes on": ("r = Relu (x) p = MaxPool <kernel_shape = [2, 2]> (r) y = Conv (p, w)", {"r"}),
    "a MaxPool that others read, too": (
        "p = MaxPool <kernel_shape = [2, 2]> (x) c = Conv (p, w) y = Mul (c, p)",
        {"p"},
    ),
    "a Concat before a product": ("r = Relu (x) c = Concat <axis = 1> (r, x) y = Conv (c, v)", {"r+x"}),
    "a Concat before a normalization and a product": (
        "r = Relu (x) c = Concat <axis = 1> (r, x) s = Relu (c) y = Conv (s, v)",
        {"r+x", "s"},
    ),
    "a Concat that is returned": ("c = Conv (x, w) y = Concat <axis = 1> (c, x)", {"x"}),
    "an average of pixels": ("r = Relu (x) y = GlobalAveragePool (r)", {"r"}),
    "a gate reads the bytes of its average": (
        "r = Relu (x) p = GlobalAveragePool (r) s = Sigmoid (p) y = Mul (r, s)",
        {"r"},
    ),
    "a gate alone": ("s = Sigmoid (x) y = Mul (x, s)", set()),
    "patches of an image": ("p = Conv <strides = [2, 2]> (x, q) y = Conv (p, l)", {"p"}),
    "patches with many of the weights": ("p = Conv <strides = [2, 2]> (x, q) y = Conv (p, w)", {"x", "p"}),
    "patches that overlap": ("p = Conv <strides = [1, 1]> (x, q) y = Conv (p, l)", {"x", "p"}),
    "patches alone": ("y = Conv <strides = [2, 2]> (x, q)", {"x"}),
    "nothing": ("y = Relu (x)", set()),
}


def groups(nodes, kept=(), shape=IMAGE, exact_sums=True):
    used = {name: value for name, value in CONSTANTS.items() if f"{name})" in nodes}
    constants = {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in used.items()}
    model = model_of_text(f"g ({shape} x) => (float[] y) {{ {nodes} }}", constants)
    for node in model.graph.node:
        node.name = f"make_{node.output[0]}"
    found = Placement(ir.from_proto(model), kept, exact_sums).groups()
    return {"+".join(sorted(value.name for value in group)) for group in found}


@pytest.mark.parametrize(
    ("perm", "behind", "rounded"),
    [
        ("0, 2, 1, 3", "y = MatMul (t, h)", "t"),
        ("0, 2, 1, 3", "r = Reshape (t, sizes) y = MatMul (r, e)", "r"),
        ("2, 0, 1, 3", "y = MatMul (t, h)", "o"),
    ],
    ids=["a Transpose", "and a Reshape", "of other axes"],
)
def test_heads_are_rounded_when_they_are_side_by_side(perm, behind, rounded):
    attention = f"s = Softmax (x) o = MatMul (s, x) t = Transpose <perm = [{perm}]> (o)"
    assert groups(f"{attention} {behind}") == {rounded}


@pytest.mark.parametrize(("nodes", "rounded"), CASES.values(), ids=CASES)
def test_what_is_rounded(nodes, rounded):
    assert groups(nodes) == rounded


def test_a_compiler_without_exact_sums_reads_both_operands_as_bytes():
    assert groups("c = Conv (x, w) y = Add (c, x)", exact_sums=False) == {"x", "c"}


@pytest.mark.parametrize(
    ("nodes", "rounded"),
    [
        ("y = MatMul (x, m)", {"x"}),
        ("t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t)", set()),
        ("s = Softmax (x) t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (t, s)", set()),
        ("y = ReduceMean <keepdims = 0> (x)", set()),
    ],
    ids=["weights", "two narrow activations", "attention", "an average of all"],
)
def test_products_of_matrices(nodes, rounded):
    assert groups(nodes, shape=MATRIX) == rounded


@pytest.mark.parametrize(
    ("shape", "rounded"), [("32,64", {"x"}), ("31,64", set()), ("64,16", set()), ("n,64", {"x"})], ids=str
)
def test_products_of_two_activations_are_in_bytes_where_both_sizes_are_large(shape, rounded):
    nodes = "t = Transpose <perm = [0, 2, 1]> (x) y = MatMul (x, t)"
    assert groups(nodes, shape=f"float[batch,{shape}]") == rounded


@pytest.mark.parametrize(
    ("kept", "rounded"), [("make_c", set()), ("make_p", {"p"}), ("make_r", {"r"})], ids=["product", "pool", "other"]
)
def test_kept_nodes_read_what_they_read_before(kept, rounded):
    nodes = "r = Relu (x) p = MaxPool <kernel_shape = [2, 2]> (r) c = Conv (p, w) y = Relu (c)"
    assert groups(nodes, {kept}) == rounded


def test_weights_that_are_computed_keep_a_convolution_in_float():
    assert groups("k = Relu (w) y = Conv (x, k)") == set()
