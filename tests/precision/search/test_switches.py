"""A graph whose layers are switched to floating point computes what a graph does that is written so."""

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.onnx_file import load_graph
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.search import SwitchedGraph, loss_alone
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8

LAYERS = ["conv1", "conv2", "pool", "classifier"]


@pytest.fixture(scope="module")
def feeds():
    return {"input": np.random.default_rng(5).uniform(-1, 1, (16, 3, 8, 8)).astype(np.float32)}


def test_a_layer_in_fp8_loses_what_its_numbers_say(tiny_onnx, feeds):
    """A float8 has three bits of mantissa: each factor of a product is off by up to 6 %, and by 2 % in the mean."""
    graph = load_graph(tiny_onnx)
    ranges = {name: Bounds(each.lowest, each.amax) for name, each in measure(graph, [feeds], bins=2048).items()}
    switched = SwitchedGraph(graph, Rounding(ranges, largest=448, precision="fp8"), LAYERS)
    exact = run_graph(open_as_written(graph), feeds)
    losses = [loss_alone(switched, layer, [feeds], [exact]) for layer in LAYERS]
    assert all(0.001 < loss < 0.06 for loss in losses), losses


@pytest.mark.parametrize(
    ("layers", "kept"),
    [(LAYERS, []), (["conv2"], []), (["conv2", "classifier"], ["conv1"])],
    ids=["all", "one can be switched", "one is kept"],
)
@pytest.mark.parametrize("largest", [127, 64])
def test_what_is_switched_computes_what_is_written(tiny_onnx, feeds, largest, layers, kept):
    graph = load_graph(tiny_onnx)
    ranges = {name: Bounds(each.lowest, each.amax) for name, each in measure(graph, [feeds], bins=2048).items()}
    rounding = Rounding(ranges, frozenset(kept), largest)
    switched = SwitchedGraph(graph, rounding, layers)
    exact = run_graph(open_as_written(graph), feeds)["logits"]
    for layer in layers:
        written = write_int8(graph, rounding.sparing(set(LAYERS) - {layer}))
        wanted = run_graph(open_as_written(written), feeds)["logits"]
        np.testing.assert_allclose(switched.run_alone(layer)(feeds)["logits"], wanted, atol=1e-5, err_msg=layer)
        assert np.abs(wanted - exact).max() > 1e-4, layer


@pytest.mark.parametrize("exact_sums", [True, False])
def test_a_sum_that_is_switched_reads_what_one_that_is_written_does(exact_sums):
    rng = np.random.default_rng(0)
    constants = {"w": rng.normal(size=(4, 4, 1, 1)).astype(np.float32)}
    text = "g (float[n,4,8,8] x) => (float[n,4,8,8] y) { [conv] c = Conv (x, w) [sum] s = Add (c, x) y = Relu (s) }"
    graph, ranges = model_of_text(text, constants), dict.fromkeys("xc", Bounds(-8, 8))
    rounding = Rounding(ranges, exact_sums=exact_sums)
    switched = SwitchedGraph(graph, rounding, ["conv", "sum"])
    given = {"x": rng.normal(size=(2, 4, 8, 8)).astype(np.float32)}
    written = write_int8(graph, rounding.sparing(["conv"]))
    wanted = run_graph(open_as_written(written), given)["y"]
    np.testing.assert_allclose(switched.run_alone("sum")(given)["y"], wanted, atol=1e-5)
    assert ("c.int8" in {node.name for node in written.graph.node}) != exact_sums
