from collections import namedtuple

import pytest
import torch
from support.errors import error_of

from enginewright.model.checkpoint import call_model, name_outputs

ONE, OTHER = torch.ones(2, 3), torch.zeros(2, 3, 4)
Scored = namedtuple("Scored", ["scores", "map"])


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (ONE, ["logits"]),
        ({"out": ONE, "aux": OTHER}, ["out", "aux"]),
        (Scored(ONE, OTHER), ["scores", "map"]),
        ((ONE, OTHER), ["output_0", "output_1"]),
        ([ONE, OTHER], ["output_0", "output_1"]),
        ((ONE, None, OTHER), ["output_0", "output_2"]),
        ({"out": ONE, "loss": None}, ["out"]),
        (Scored(None, OTHER), ["map"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outputs_have_names_in_whatever_container_they_are(result, names):
    named = name_outputs(result)
    assert list(named) == names
    assert all(value is ONE or value is OTHER for value in named.values())


@pytest.mark.parametrize("result", [{}, (), (None, None), {"loss": None}], ids=repr)
def test_a_model_that_returns_nothing_is_refused(result):
    kind = type(result).__name__
    assert error_of(name_outputs, result) == f"model.source: the model returns {kind} without a tensor"


def test_an_output_that_is_no_tensor_is_refused_by_name():
    assert error_of(name_outputs, {"out": ONE, "loss": 0.5}) == "model.source: output loss is float, not a tensor"
    assert error_of(name_outputs, "done") == "model.source: the model returns str, not tensors"
    assert error_of(name_outputs, (ONE, (OTHER,))) == "model.source: output output_1 is tuple, not a tensor"


def test_one_input_is_given_by_position_and_several_by_name():
    def alone(pixels):
        return pixels

    def pair(second, first):
        return {"first": first, "second": second}

    assert call_model(alone, {"input": ONE})["logits"] is ONE
    assert call_model(pair, {"first": ONE, "second": OTHER}) == {"first": ONE, "second": OTHER}
