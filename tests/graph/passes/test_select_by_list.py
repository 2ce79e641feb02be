import numpy as np
import pytest
from support.pass_checks import BODIES, all_nodes, apply_pass, count_types, model_of_text, model_with_body, round_trip

from enginery.graph.passes.select_by_list import SelectByList

SHAPE = "float[batch,5,8]"
CONSTANTS = {"last": np.array(-1), "list": np.array([2]), "table": np.eye(8, dtype=np.float32)}


def model(nodes):
    used = {name: array for name, array in CONSTANTS.items() if name in nodes}
    return model_of_text(f"g ({SHAPE} input) => (float[] y) {{ {nodes} }}", used)


@pytest.mark.parametrize("axis", [1, 2, -2])
def test_one_place_is_selected_by_a_list(axis):
    select, squeeze = all_nodes(apply_pass(SelectByList(), model(f"y = Gather <axis = {axis}> (input, last)")))
    assert (select.op_type, squeeze.op_type) == ("Gather", "Squeeze")
    assert select.inputs[1].const_value.numpy().tolist() == [-1]


@pytest.mark.parametrize(
    "nodes", ["y = Gather <axis = 1> (input, list)", "row = Gather (table, last) y = Add (input, row)"]
)
def test_lists_and_constants_stay(nodes):
    assert apply_pass(SelectByList(), model(nodes)) == round_trip(model(nodes))


@pytest.mark.parametrize("kind", BODIES)
def test_a_place_in_a_body_is_selected_there(kind):
    before = model_with_body(kind, "r = Gather <axis = 1> (x, last)", (5, 8), {"last": CONSTANTS["last"]})
    assert count_types(apply_pass(SelectByList(), before))["Squeeze"] == (2 if kind == "If" else 1)
