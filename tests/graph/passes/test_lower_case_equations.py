import numpy as np
import pytest
from support.pass_checks import BODIES, all_nodes, apply_pass, model_of_text, model_with_body

from enginewright.graph.passes import lower_case_equations

WEIGHTS = {"w": np.random.default_rng(1).normal(0, 0.3, (5, 4)).astype(np.float32)}


def equations(model):
    return [node.attributes["equation"].value for node in all_nodes(model) if node.op_type == "Einsum"]


@pytest.mark.parametrize("equation", ["bcI,Id->bcd", "bAc,cI->bAI", "aBc,cA->aBA", "bij,jk->bik", "...I,Id->...d"])
def test_equations_get_small_letters_and_keep_their_meaning(equation):
    graph = f'g (float[batch, 6, 5] input) => (float[] y) {{ y = Einsum <equation = "{equation}"> (input, w) }}'
    (after,) = equations(apply_pass(lower_case_equations, model_of_text(graph, WEIGHTS)))
    assert after == after.lower()
    assert len(set(after)) == len(set(equation))


@pytest.mark.parametrize("kind", BODIES)
def test_equations_in_a_body_get_small_letters(kind):
    model = model_with_body(kind, 'r = Einsum <equation = "bAc,cI->bAI"> (x, w)', (6, 5), WEIGHTS)
    assert set(equations(apply_pass(lower_case_equations, model))) == {"bac,cd->bad"}


def test_an_equation_with_more_axes_than_small_letters_stays():
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    graph = f"""g (float[{",".join("1" * 27)}] input) => (float[] y) {{
        y = Einsum <equation = "{alphabet}A->A"> (input)
    }}"""
    model = model_of_text(graph)
    assert equations(apply_pass(lower_case_equations, model, batches=())) == [f"{alphabet}A->A"]


def test_an_equation_that_a_function_is_given_stays():
    function = """
        <domain: "local", opset_import: ["": 20]>
        product <equation> (x, v) => (z) { z = Einsum <equation : string = @equation> (x, v) }"""
    graph = 'g (float[batch, 6, 5] input) => (float[] y) { y = local.product <equation = "bcI,Id->bcd"> (input, w) }'
    model = model_of_text(graph, WEIGHTS, function)
    assert equations(apply_pass(lower_case_equations, model)) == [None]
