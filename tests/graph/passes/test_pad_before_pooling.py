import pytest
from support.pass_checks import (
    BODIES,
    all_nodes,
    apply_pass,
    count_types,
    model_of_text,
    model_with_body,
    renamed,
    round_trip,
)

from enginewright.graph.passes.for_one_compiler import pad_before_pooling

POOL = "AveragePool <kernel_shape = [3, 3], {settings}>"
COUNTED = "pads = [1, 0, 1, 2], count_include_pad = 1, strides = [2, 1]"


def pooling(settings, opset=20):
    pool = POOL.format(settings=settings)
    return model_of_text(f"g (float[batch, 3, 9, 8] input) => (float[] y) {{ y = {pool} (input) }}", opset=opset)


@pytest.mark.parametrize("opset", [10, 20])  # before opset 11, Pad takes its amounts as an attribute
def test_padding_that_counts_becomes_a_node(opset):
    pad, pool = all_nodes(apply_pass(pad_before_pooling, pooling(COUNTED, opset)))
    assert (pad.op_type, pool.op_type) == ("Pad", "AveragePool")
    assert {name: attribute.value for name, attribute in pool.attributes.items()} == {
        "kernel_shape": (3, 3),
        "strides": (2, 1),
    }


@pytest.mark.parametrize(
    "settings",
    [
        "count_include_pad = 1",
        "count_include_pad = 1, pads = [0, 0, 0, 0]",
        "pads = [1, 0, 1, 2]",
        "pads = [1, 0, 1, 2], count_include_pad = 0",
        "pads = [1, 0, 1, 2], count_include_pad = 1, ceil_mode = 1",
    ],
)
def test_other_pooling_stays(settings):
    model = pooling(settings)
    assert apply_pass(pad_before_pooling, model) == round_trip(model)


def test_a_new_tensor_takes_no_name_that_is_in_use():
    pool = POOL.format(settings=COUNTED)
    nodes = f"a = {pool} (input) c = Neg (input) b = {pool} (c) y = Add (a, b)"
    model = renamed(model_of_text(f"g (float[batch, 3, 9, 8] input) => (float[] y) {{ {nodes} }}"), {"c": "a.padded"})
    assert count_types(apply_pass(pad_before_pooling, model))["Pad"] == 2


@pytest.mark.parametrize("kind", BODIES)
def test_padding_in_a_body_becomes_a_node_there(kind):
    after = apply_pass(pad_before_pooling, model_with_body(kind, f"r = {POOL.format(settings=COUNTED)} (x)", (3, 9, 8)))
    counts = count_types(after)
    assert counts["Pad"] == counts["AveragePool"] == (2 if kind == "If" else 1)
    assert not any(node.attributes.get("pads") for node in all_nodes(after))


@pytest.mark.parametrize(("settings", "padded"), [(COUNTED, 1), ("pads : ints = @pads, count_include_pad = 1", 0)])
def test_padding_in_a_function_becomes_a_node_unless_the_caller_gives_it(settings, padded):
    function = f"""
        <domain: "local", opset_import: ["": 20]>
        pool <pads> (x) => (z) {{ z = {POOL.format(settings=settings)} (x) }}"""
    graph = "g (float[batch, 3, 9, 8] input) => (float[] y) { y = local.pool <pads = [1, 0, 1, 2]> (input) }"
    assert count_types(apply_pass(pad_before_pooling, model_of_text(graph, functions=function)))["Pad"] == padded
