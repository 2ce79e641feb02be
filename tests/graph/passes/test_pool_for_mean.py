import numpy as np
import pytest
from support.pass_checks import apply_pass, count_types, model_of_text, round_trip

from enginewright.graph.passes.for_one_compiler import pool_for_mean


def mean(axes, keepdims=1, rank=4):
    sizes, ranks = ",".join(["n", "3", "8", "8"][:rank]), rank if keepdims else rank - len(axes)
    text = f"g (float[{sizes}] input) => (float[{','.join('abcd'[:ranks])}] y)"
    return model_of_text(f"{text} {{ y = ReduceMean <keepdims = {keepdims}> (input, axes) }}", {"axes": np.array(axes)})


@pytest.mark.parametrize("axes", [[2, 3], [-1, -2]])
def test_the_mean_of_pixels_is_pooled(axes):
    assert count_types(apply_pass(pool_for_mean, mean(axes))) == {"GlobalAveragePool": 1}


@pytest.mark.parametrize("other", [mean([1]), mean([2]), mean([2, 3], keepdims=0)])
def test_another_mean_stays(other):
    assert apply_pass(pool_for_mean, other) == round_trip(other)
