import numpy as np
import pytest
from support.pass_checks import BODIES, all_nodes, apply_pass, count_types, model_of_text, model_with_body, round_trip

from enginewright.graph.passes.for_one_compiler import merge_products

RANDOM = np.random.default_rng(0)
SIZES = {"q": 4, "k": 6, "v": 2}
WEIGHTS = {name: RANDOM.normal(0, 0.1, (4, size)).astype(np.float32) for name, size in SIZES.items()}
BIASES = {f"b{name}": RANDOM.normal(0, 0.1, size).astype(np.float32) for name, size in SIZES.items()}
WITH_BIAS = "a = MatMul (x, q) d = Add (a, bq) b = MatMul (x, k) e = Add (bk, b) c = MatMul (x, v) f = Add (c, bv)"
WITHOUT = "d = MatMul (x, q) e = MatMul (x, k) f = MatMul (x, v)"
JOINED = "r = Concat <axis = -1> (d, e, f)"


def model_of(nodes, opset=20):
    graph = f"g (float[batch, 3, 4] input) => (float[] y) {{ x = Relu (input) {nodes} y = Neg (r) }}"
    return model_of_text(graph, WEIGHTS | BIASES, opset=opset)


@pytest.mark.parametrize(("nodes", "left"), [(WITH_BIAS, ["MatMul", "Add", "Split"]), (WITHOUT, ["MatMul", "Split"])])
def test_products_of_one_tensor_become_one(nodes, left):
    after = apply_pass(merge_products, model_of(f"{nodes} {JOINED}"))
    assert [node.op_type for node in all_nodes(after)] == ["Relu", *left, "Concat", "Neg"]
    assert not {tensor.name for tensor in after.graph.initializer} & WEIGHTS.keys()


def test_a_product_without_a_bias_stays_beside_those_with_one():
    nodes = WITH_BIAS.replace("f = Add (c, bv)", "f = Relu (c)")
    counts = count_types(apply_pass(merge_products, model_of(f"{nodes} {JOINED}")))
    assert (counts["MatMul"], counts["Add"], counts["Split"]) == (2, 1, 1)


@pytest.mark.parametrize(
    ("nodes", "opset"),
    [
        (f"d = MatMul (x, q) e = Relu (d) f = MatMul (e, v) {JOINED}", 20),  # of different tensors
        ("w = Neg (q) d = MatMul (x, w) e = MatMul (x, k) r = Concat <axis = -1> (d, e)", 20),  # of computed weights
        (f"{WITHOUT} {JOINED}", 12),  # Split has its sizes in an attribute
    ],
)  # fmt: skip
def test_other_products_stay(nodes, opset):
    model = model_of(nodes, opset)
    assert apply_pass(merge_products, model) == round_trip(model)


@pytest.mark.parametrize("kind", BODIES)
def test_products_in_a_body_become_one_there(kind):
    after = apply_pass(merge_products, model_with_body(kind, f"{WITH_BIAS} {JOINED}", (3, 4), WEIGHTS | BIASES))
    counts = count_types(after)
    assert counts["MatMul"] == counts["Split"] == (2 if kind == "If" else 1)
