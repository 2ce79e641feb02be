import numpy as np
import pytest
from support.pass_checks import BODIES, all_nodes, apply_pass, count_types, model_of_text, model_with_body, round_trip

from enginewright.graph.passes.find import remove_unused


def constants_of(model):
    return {value.name for node in all_nodes(model) for value in node.inputs if value and value.is_initializer()}


def test_unread_nodes_and_constants_are_removed():
    graph = "g (float[batch, 2] input) => (float[] y) { a = Neg (input) b = Mul (a, w) y = Relu (input) }"
    after = apply_pass(remove_unused, model_of_text(graph, {"w": np.ones(2, np.float32), "v": np.float32(1)}))
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
def test_inputs_and_outputs_of_the_model_and_of_used_nodes_stay(graph):
    model = model_of_text(graph)
    assert apply_pass(remove_unused, model, batches=()) == round_trip(model)


def test_a_weight_that_an_old_file_lists_as_an_input_stays():
    model = model_of_text(
        "g (float[batch, 2] input, float[2] w) => (float[] y) { y = Relu (input) }", {"w": np.ones(2, "f")}
    )
    assert apply_pass(remove_unused, model) == round_trip(model)


@pytest.mark.parametrize("kind", BODIES)
def test_unread_nodes_of_a_body_are_removed_with_the_constants_that_only_they_read(kind):
    model = model_with_body(
        kind, "a = Mul (x, w) b = Neg (x) r = Add (x, v)", (3,), {"w": np.ones(3, "f"), "v": np.ones(3, "f")}
    )
    after = apply_pass(remove_unused, model)
    assert "Mul" not in count_types(after)
    assert {tensor.name for tensor in after.graph.initializer} == {"v"}


def test_unread_constants_of_a_body_are_removed():
    body = "(float[] r) <float[1] w = {1.0}, float[1] v = {2.0}> { r = Add (input, v) }"
    graph = f"""
        g (float[batch, 1] input) => (float[] y) {{
            y = If (yes) <then_branch = a () => {body}, else_branch = b () => {body}>
        }}"""
    after = apply_pass(remove_unused, model_of_text(graph, {"yes": True}))
    assert constants_of(after) == {"yes", "v"}
    branches = [attribute.g for attribute in after.graph.node[0].attribute]
    assert [[tensor.name for tensor in branch.initializer] for branch in branches] == [["v"], ["v"]]


def test_nodes_that_only_an_unread_if_reads_are_removed_with_it():
    graph = """
        g (float[batch, 1] input) => (float[] y) {
            a = Neg (input)
            unread = If (yes) <
                then_branch = a () => (float[] r) { r = Add (a, w) },
                else_branch = b () => (float[] r) { r = Mul (a, w) }
            >
            y = Relu (input)
        }"""
    after = apply_pass(remove_unused, model_of_text(graph, {"yes": True, "w": np.ones(1, np.float32)}))
    assert count_types(after) == {"Relu": 1}
    assert not after.graph.initializer


def test_unread_nodes_of_a_function_are_removed():
    function = '<domain: "local", opset_import: ["": 20]> f (x) => (z) { a = Relu (x) z = Neg (x) }'
    model = model_of_text("g (float[batch, 2] input) => (float[] y) { y = local.f (input) }", functions=function)
    assert count_types(apply_pass(remove_unused, model)) == {"f": 1, "Neg": 1}
