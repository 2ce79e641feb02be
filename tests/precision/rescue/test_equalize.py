"""Scales that move between the weights before and behind a tensor."""

import numpy as np
import onnx_ir as ir
import pytest
from support.pass_checks import model_of_text, session_of

from enginewright.precision.equalize import equalize, find_seams, tensors_of
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8

RNG = np.random.default_rng(0)
UNEQUAL = np.geomspace(0.01, 1, 8).astype(np.float32)  # what the channels of the first product reach
IMAGE, MATRIX = "float[batch,8,6,6]", "float[batch,5,8]"


def weights(*shape):
    return RNG.normal(size=shape).astype(np.float32)


CONSTANTS = {
    "u": weights(8, 8, 1, 1) * UNEQUAL[:, None, None, None],
    "b": weights(8) * UNEQUAL,
    "w": weights(4, 8, 3, 3),
    "d": weights(8, 1, 3, 3),
    "g": weights(6, 4, 1, 1),
    "m": weights(8, 8) * UNEQUAL,
    "n": weights(8, 4),
    "s": UNEQUAL,
    "rows": UNEQUAL[None],
    "one": np.array(0.001, np.float32),
    "f": weights(3, 8),
    "h": weights(4, 8),
    "flat": np.array([0, 8]),
    "first": np.array(0),
    "two": np.array([0, 1]),
    "pairs": np.array([[0, 1], [2, 3]]),
    "yes": np.array(True),
    "alike": np.ones((8, 8), np.float32),
    "i": np.arange(64, dtype=np.int32).reshape(8, 8),
    "order": np.arange(8)[::-1].copy(),
}
CASES = {  # nodes after which the channels of `c` may be scaled, and the shape of the input
    "through an activation": ("c = Conv (input, u, b) r = Relu (c) y = Conv (r, w)", IMAGE),
    "by a depthwise convolution": ("c = Conv (input, u) r = Relu (c) y = Conv <group = 8> (r, d)", IMAGE),
    "of channels that lie last for a normalization": (
        "t = Transpose <perm = [0, 2, 3, 1]> (input) l = LayerNormalization (t, s, b) "
        "c = Transpose <perm = [0, 3, 1, 2]> (l) y = Conv (c, w)",
        IMAGE,
    ),
    "turned around twice": ("c = MatMul (input, m) t = Transpose (c) e = Transpose (t) y = MatMul (e, n)", MATRIX),
    "by groups": ("c = Conv (input, u, b) y = Conv <group = 2> (c, g)", IMAGE),
    "for two readers": ("c = Conv (input, u) p = Conv (c, w) q = Conv (c, w2) y = Add (p, q)", IMAGE),
    "through pooling": (
        "c = Conv (input, u) r = LeakyRelu (c) m = MaxPool <kernel_shape = [2, 2]> (r) a = GlobalAveragePool (m) "
        "e = Reshape (a, flat) y = Gemm <transB = 1> (e, f)",
        IMAGE,
    ),
    "with one number for all": (
        "a = GlobalAveragePool (input) e = Reshape (a, flat) c = Gemm (e, m, one) y = MatMul (c, n)",
        IMAGE,
    ),
    "behind a normalization in rows": ("c = LayerNormalization (input, rows, b) y = MatMul (c, n)", MATRIX),
    "behind a normalization": ("c = LayerNormalization (input, s, b) y = MatMul (c, n)", MATRIX),
    "behind the weights of an RMSNorm": ("c = Mul (input, s) y = MatMul (c, n)", MATRIX),
    "of the first token": (
        "c = LayerNormalization (input, s, b) t = Gather <axis = 1> (c, first) y = Gemm <transB = 1> (t, f)",
        MATRIX,
    ),
    "of tokens in rows": (
        "c = MatMul (input, m) t = Gather <axis = 1> (c, pairs) e = Transpose <perm = [0, 2, 1, 3]> (t) "
        "y = MatMul (e, n)",
        MATRIX,
    ),
    "of chosen tokens": ("c = MatMul (input, m) t = Gather <axis = 1> (c, two) y = MatMul (t, n)", MATRIX),
    "through a bias": ("p = MatMul (input, m) c = Add (b, p) y = MatMul (c, n)", MATRIX),
}
NOT = {
    "through a curve": ("c = Conv (input, u) r = HardSwish (c) y = Conv (r, w)", IMAGE),
    "what is returned": ("y = Conv (input, u)", IMAGE),
    "of a sum": ("c = Conv (input, u) e = Add (c, input) y = Conv (e, w)", IMAGE),
    "read by something else": ("c = Conv (input, u) p = Conv (c, u2) q = Sigmoid (c) y = Mul (p, q)", IMAGE),
    "with shared weights": ("c = Conv (input, u) y = Conv (c, u)", IMAGE),
    "in another order": ("c = MatMul (input, m) t = Gather <axis = 2> (c, order) y = MatMul (t, n)", MATRIX),
    "in a body": (
        "c = MatMul (input, m) y = If ( yes) <then_branch = a () => (float[batch,5,4] r) "
        "{ t = Transpose <perm = [0, 1, 2]> (c) r = MatMul (t, n) }, "
        "else_branch = e () => (float[batch,5,4] r2) { r2 = MatMul (c, n2) }>",
        MATRIX,
    ),
    "along another axis": ("c = MatMul (input, m) t = Transpose <perm = [0, 2, 1]> (c) y = MatMul (m2, t)", MATRIX),
}


def model(nodes, shape):
    others = {f"{name}2": CONSTANTS[name] + 1 for name in ("w", "n", "u")}
    known = CONSTANTS | others | {"m2": weights(4, 8)}
    used = {name: known[name] for name in known if f" {name})" in nodes or f" {name}," in nodes or f"({name}," in nodes}
    return model_of_text(f"g ({shape} input) => (float[] y) {{ {nodes} }}", used)


def batches(shape):
    size = [6] * 2 if shape == IMAGE else []
    return [{"input": RNG.normal(size=(4, 8, *size) if size else (4, 5, 8)).astype(np.float32)} for _ in range(2)]


def spread(graph, name, feeds, axis):
    """Return how many times as far the widest channel of a tensor reaches as the narrowest."""
    shown = ir.from_proto(graph)
    value = next(v for node in shown.graph for v in node.outputs if v.name == name)
    shown.graph.outputs.append(value)
    array = np.abs(np.moveaxis(session_of(ir.to_proto(shown)).run([name], feeds)[0], axis, 0))
    widest = array.reshape(len(array), -1).max(axis=1)
    return widest.max() / widest.min()


def names_in(graph):
    return ["input", *(name for node in graph.graph.node for name in node.output)]


def ranges_of(graph, names, feeds):
    """Return where the numbers of some tensors lie."""
    tensors = list(tensors_of(graph, names, feeds))
    all_of = {name: np.concatenate([each[name] for each in tensors]) for name in names}
    return {name: Bounds(min(0.0, values.min()), np.abs(values).max()) for name, values in all_of.items()}


def equalized(before, given):
    """Equalize a graph, and check that it tells what tensors have changed, and where they lie."""
    names = names_in(before)
    known = ranges_of(before, names, given)
    after, ranges = equalize(before, (), given, known)
    found = ranges_of(after, {*names, *ranges}, given)
    assert {name: each[:2] for name, each in {**known, **ranges}.items()} == {
        name: pytest.approx(each[:2], rel=1e-4, abs=1e-5) for name, each in found.items()
    }
    assert write_int8(after, Rounding(found))  # whose shapes are inferred anew
    return after


@pytest.mark.parametrize(("nodes", "shape"), CASES.values(), ids=CASES)
def test_channels_become_alike_and_the_graph_computes_the_same(nodes, shape):
    before, given = model(nodes, shape), batches(shape)
    after = equalized(before, given)
    exact, found = (session_of(graph).run(None, given[0])[0] for graph in (before, after))
    assert np.linalg.norm(found - exact) < 1e-6 * np.linalg.norm(exact)
    axis = 1 if shape == IMAGE else 2
    assert spread(after, "c", given[0], axis) < 0.5 * spread(before, "c", given[0], axis)


def test_what_a_sum_reads_too_is_divided_before_products_if_its_channels_differ():
    nodes = "c = MatMul (input, m) p = MatMul (c, n) q = MatMul (c, n2) r = Add (p, q) e = MatMul (r, h) y = Add (c, e)"
    before, given = model(nodes, MATRIX), batches(MATRIX)
    after = equalized(before, given)
    exact, found = (session_of(graph).run(None, given[0])[0] for graph in (before, after))
    assert np.linalg.norm(found - exact) < 1e-6 * np.linalg.norm(exact)
    assert spread(after, "c.divided", given[0], 2) < 0.5 * spread(before, "c", given[0], 2)
    makers = [node.input[0] for node in after.graph.node if node.op_type == "Mul"]
    assert makers == ["c"]


SUM = "c = MatMul (input, m) p = MatMul (c, n) r = MatMul (p, h) y = Add (c, r)"
INTEGERS = (
    "j = Cast <to = 6> (input) k = MatMul (j, i) o = Add (j, k) p = Cast <to = 1> (o) "
    "c = LayerNormalization (p, s, b) y = MatMul (c, n)"
)


@pytest.mark.parametrize(
    ("nodes", "kept", "makers"),
    [
        (SUM, ["node_1"], []),
        (SUM, ["node_2"], ["c"]),
        ("c = MatMul (input, m) l = Relu (c) p = MatMul (l, n) q = MatMul (c, n2) y = Add (p, q)", [], []),
        (SUM.replace("c = MatMul (input", "k = MatMul (input, alike) l = Add (k, input) c = MatMul (l"), [], ["c"]),
        (INTEGERS, [], []),
    ],
    ids=[
        "its product stays in floats",
        "another does",
        "it can take scales",
        "only of unequal channels",
        "they are integers",
    ],
)
def test_a_mul_is_added_only_where_it_is_needed(nodes, kept, makers):
    given = model(nodes, MATRIX)
    for number, node in enumerate(given.graph.node):
        node.name = f"node_{number}"
    reached = {name: Bounds(-9.0, 9.0) for node in given.graph.node for name in node.output}
    after = equalize(given, kept, [{"input": np.ones((4, 5, 8), np.float32)}], reached)
    graph = after[0].graph if after else given.graph
    added = [node.input[0] for node in graph.node if node.op_type == "Mul"]
    assert added == makers


@pytest.mark.parametrize(("nodes", "shape"), NOT.values(), ids=NOT)
def test_channels_are_not_scaled(nodes, shape):
    graph = model(nodes, shape)
    assert list(find_seams(ir.from_proto(graph))) == []
    assert equalize(graph, (), batches(shape), ranges_of(graph, names_in(graph), batches(shape))) is None


def test_equal_channels_stay_as_they_are():
    nodes, shape = CASES["by a depthwise convolution"]
    graph, ones = model(nodes, shape), np.ones((1, 8, 6, 6), np.float32)
    for tensor in graph.graph.initializer:
        shape = tensor.dims
        tensor.CopyFrom(ir.to_proto(ir.tensor(np.ones(shape, np.float32), name=tensor.name)))
    given = [{"input": ones}]
    assert equalize(graph, (), given, ranges_of(graph, names_in(graph), given)) is None


def test_what_has_no_range_is_not_scaled():
    graph, given = model(*CASES["through a bias"]), batches(MATRIX)
    assert equalize(graph, (), given, {}) is None
