"""Where a graph may change its type, and which layers belong to which part."""

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginewright.engine.record import LayerTime, node_names
from enginewright.engine.runtimes.onnxruntime import ONNXRuntime
from enginewright.graph.onnx_file import load_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.precision.mixing import (
    Parts,
    Traces,
    blocks_of,
    cheapest_assignment,
    mixes_worth_trying,
    places_of,
    times_of_blocks,
)
from enginewright.precision.placement import arithmetic_nodes

SQUARE = {"w": np.ones((4, 4, 1, 1), np.float32)}
GRAPHS = {
    "a chain is cut behind each activation": ("c = Conv (x, w) r = Relu (c) y = Conv (r, w)", ["c r", "y"]),
    "a residual sum is one part": (
        "a = Conv (x, w) r = Relu (a) c = Conv (r, w) s = Add (c, a) t = Relu (s) y = Conv (t, w)",
        ["a", "r c s t", "y"],
    ),
    "what pools or moves joins the part before": (
        "c = Conv (x, w) r = Relu (c) m = MaxPool <kernel_shape = [1, 1]> (r) y = Conv (m, w)",
        ["c r m", "y"],
    ),
    "a mask that all parts read cuts nothing": (
        "k = Sigmoid (x) c = Conv (x, w) d = Mul (c, k) e = Conv (d, w) y = Mul (e, k)",
        ["k c d", "e y"],
    ),
    "two branches are one part": (
        "i = Conv (x, w) a = Conv (i, w) b = Conv (i, w) y = Concat <axis = 1> (a, b)",
        ["i", "a b y"],
    ),
}


@pytest.mark.parametrize(("nodes", "parts"), GRAPHS.values(), ids=list(GRAPHS))
def test_parts_are_entered_and_left_by_one_tensor(nodes, parts):
    wide = 8 if "Concat" in nodes else 4
    model = model_of_text(f"g (float[batch,4,8,8] x) => (float[batch,{wide},8,8] y) {{ {nodes} }}", SQUARE)
    for node in model.graph.node:
        node.name = node.output[0]
    blocks = blocks_of(model, arithmetic_nodes(model, []))
    assert [" ".join(block) for block in blocks] == parts
    assert places_of(model, blocks)["y"] == len(parts) - 1


def test_each_part_has_a_layer_of_onnx_runtime(tiny_onnx, tmp_path, build):
    """Which names convolutions of images after what they make."""
    compiled = ONNXRuntime().compile(tiny_onnx, read_blueprint(tiny_onnx, build), tmp_path)
    model = load_graph(tiny_onnx)
    blocks = blocks_of(model, arithmetic_nodes(model, []))
    assert any("_nchwc" in layer.name for layer in compiled.layers)
    places = places_of(model, blocks)
    found = {places[name] for layer in compiled.layers for name in node_names(layer) if name in places}
    assert found == set(range(len(blocks)))


def layer(name, milliseconds):
    return LayerTime(name=name, kind="any", precision="int8", computes=True, milliseconds=milliseconds)


PLACES = {"a": 0, "b": 0, "c": 1, "d": 2, "logits": 2}


def test_a_layer_belongs_to_its_first_known_node_and_a_cast_to_what_follows():
    layers = [layer("a,b", 1), layer("cast", 2), layer("c + d", 4), layer("reorder", 8), layer("logits", 16)]
    assert times_of_blocks(layers, PLACES) == [1, 6, 24]


WAYS = {
    "each part alone where a change is free": ([2, 1, 2], [1, 2, 1], [3, 3, 3], 0, "bf16 int8 bf16"),
    "a dear change keeps what loses a little": ([2, 1, 2], [1, 2, 1], [3, 3, 3], 0.6, "bf16 bf16 bf16"),
    "and leaves what gains a little": ([1, 1.1, 1], [9, 1, 9], [9, 9, 9], 0.2, "int8 int8 int8"),
    "all in int8": ([1, 1], [2, 2], [2, 2], 0, "int8 int8"),
    "what is as fast stays in int8": ([1, 1], [1, 1], [1, 1], 0, "int8 int8"),
    "each part in a type of its own": ([1, 9, 9], [9, 1, 9], [9, 9, 1], 2, "int8 bf16 fp32"),
    "through a third type, if all changes cost the same": ([1, 4, 9], [9, 3, 9], [9, 2, 1], 2, "int8 fp32 fp32"),
    "without int8": ([9, 9], [1, 9], [9, 1], 2, "bf16 fp32"),
}


@pytest.mark.parametrize(("int8", "bf16", "fp32", "price", "assignment"), WAYS.values(), ids=list(WAYS))
def test_the_cheapest_assignment_pays_for_each_change_of_type(int8, bf16, fp32, price, assignment):
    assert cheapest_assignment({"int8": int8, "bf16": bf16, "fp32": fp32}, price) == tuple(assignment.split())


def test_ways_that_mix_nothing_are_not_worth_trying():
    for int8, fp32, ways in (
        ([1, 1], [2, 2], []),
        ([2, 2], [1, 1], []),
        ([100, 102, 100], [200, 100, 200], []),
        ([100, 110, 100], [200, 100, 200], [("int8", "fp32", "int8")]),
    ):
        assert mixes_worth_trying({"int8": int8, "fp32": fp32}) == ways


def test_parts_are_timed_and_named_in_each_type():
    times = {
        "int8": [[1, 2, 4]] * 3,
        "bf16": [[10, 20, 40]] * 3,
        "fp32": [[100, 200, 400 + more] for more in (0, 2, 8)],
    }
    traces = Traces(None, {name: np.array(each) for name, each in times.items()})
    assignment, parts = ("int8", "fp32", "bf16"), Parts([("a",), ("b", "c"), ("d",)], {})
    assert traces.of(assignment).tolist() == [[1, 200, 40]] * 3
    assert parts.timed(traces.medians)[2].milliseconds == {"int8": 4, "bf16": 40, "fp32": 402}
    assert parts.floating(assignment) == {"fp32": ("b", "c"), "bf16": ("d",)}
    assert parts.floating(parts.all_in("bf16")) == {"bf16": ("a", "b", "c", "d")}
