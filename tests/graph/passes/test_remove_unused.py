import numpy as np
import pytest
from support.pass_checks import BODIES, all_nodes, applied, as_read, count_types, in_body, read_text

from enginery.graph.passes.remove_unused import RemoveUnused


def constants_of(model):
    return {value.name for node in all_nodes(model) for value in node.inputs if value and value.is_initializer()}


def test_what_nobody_reads_is_removed():
    graph = "g (float[batch, 2] input) => (float[] y) { a = Neg (input) b = Mul (a, w) y = Relu (input) }"
    after = applied(RemoveUnused(), read_text(graph, {"w": np.ones(2, np.float32), "v": np.float32(1)}))
    assert count_types(after) == {"Relu": 1}
    assert (len(after.graph.initializer), len(after.graph.value_info)) == (0, 0)


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[batch, 2] input, float[2] unread) => (float[] y) { y = Relu (input) }",
        "g (float[batch, 2] input) => (float[] y, float[] a) { a = Neg (input) y = Relu (input) }",
        "g (float[batch, 2, 4, 4] input) => (float[] y) { y, at = MaxPool <kernel_shape = [2, 2]> (input) }",
        "g (float[batch, 2] input) => (float[] y) { a, b = Split <num_outputs = 2, axis = 1> (input) y = Relu (b) }",
    ],
    ids=["an input", "an output", "an output of a node", "one output of two"],
)
def test_what_belongs_to_the_model_or_to_a_node_in_use_stays(graph):
    model = read_text(graph)
    assert applied(RemoveUnused(), model, batches=()) == as_read(model)


def test_a_weight_that_an_old_file_lists_as_an_input_stays():
    model = read_text(
        "g (float[batch, 2] input, float[2] w) => (float[] y) { y = Relu (input) }", {"w": np.ones(2, "f")}
    )
    assert applied(RemoveUnused(), model) == as_read(model)


@pytest.mark.parametrize("kind", BODIES)
def test_what_nobody_reads_in_a_body_is_removed_and_what_only_it_reads(kind):
    model = in_body(
        kind, "a = Mul (x, w) b = Neg (x) r = Add (x, v)", (3,), {"w": np.ones(3, "f"), "v": np.ones(3, "f")}
    )
    after = applied(RemoveUnused(), model)
    assert "Mul" not in count_types(after)
    assert {tensor.name for tensor in after.graph.initializer} == {"v"}


def test_unread_constants_of_a_body_are_removed():
    body = "(float[] r) <float[1] w = {1.0}, float[1] v = {2.0}> { r = Add (input, v) }"
    graph = f"""
        g (float[batch, 1] input) => (float[] y) {{
            y = If (yes) <then_branch = a () => {body}, else_branch = b () => {body}>
        }}"""
    after = applied(RemoveUnused(), read_text(graph, {"yes": True}))
    assert constants_of(after) == {"yes", "v"}
    branches = [attribute.g for attribute in after.graph.node[0].attribute]
    assert [[tensor.name for tensor in branch.initializer] for branch in branches] == [["v"], ["v"]]


def test_what_only_an_unread_if_reads_is_removed_with_it():
    graph = """
        g (float[batch, 1] input) => (float[] y) {
            a = Neg (input)
            unread = If (yes) <
                then_branch = a () => (float[] r) { r = Add (a, w) },
                else_branch = b () => (float[] r) { r = Mul (a, w) }
            >
            y = Relu (input)
        }"""
    after = applied(RemoveUnused(), read_text(graph, {"yes": True, "w": np.ones(1, np.float32)}))
    assert count_types(after) == {"Relu": 1}
    assert not after.graph.initializer


def test_what_nobody_reads_in_a_function_is_removed():
    function = '<domain: "local", opset_import: ["": 20]> f (x) => (z) { a = Relu (x) z = Neg (x) }'
    model = read_text("g (float[batch, 2] input) => (float[] y) { y = local.f (input) }", functions=function)
    assert count_types(applied(RemoveUnused(), model)) == {"f": 1, "Neg": 1}
