"""int8 for CPUs: the grid of each tensor, and graphs that compute nearly the same."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.pass_checks import model_of_text
from support.quantized import constants

from enginewright.core.params.precisions import Keep
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.onnx_file import load_graph
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.calibration.histogram import Histogram
from enginewright.precision.cast import cast
from enginewright.precision.write_int8 import Bounds, Grid, Rounding, grid_of, tensors_in_int8, write_int8

SWISH = 0.375  # how far HardSwish reaches below zero


@pytest.mark.parametrize(
    ("ranges", "is_added", "grid"),
    [
        ([(0, 2.55)], False, Grid(0.01, np.uint8(0))),
        ([(-1, 1.27)], False, Grid(0.01, np.int8(0))),
        ([(0, 2.55), (-1, 1.27)], False, Grid(2.55 / 127, np.int8(0))),
        ([(-SWISH, 6)], False, Grid(6.375 / 255, np.uint8(15))),
        ([(-SWISH, 6)], True, Grid(6 / 127, np.int8(0))),
        ([(-9, 1.27)], False, Grid(0.01, np.int8(0))),  # what is clipped reaches no farther than the rest
        ([(0, 0)], False, Grid(1e-12 / 255, np.uint8(0))),
    ],
    ids=["never negative", "both signs", "both in one group", "swish", "an added swish", "clipped", "always zero"],
)
def test_the_finest_grid_is_taken(ranges, is_added, grid):
    found = grid_of([Bounds(*map(float, each)) for each in ranges], is_added)
    assert (found.scale, found.zero) == (pytest.approx(grid.scale), grid.zero)
    assert found.zero.dtype == grid.zero.dtype


CHANNELS = np.array([[-SWISH, -SWISH, 0, 0], [6, 0, 2.55, 0.001]])  # the lowest and the largest number of each


@pytest.mark.parametrize(
    ("group", "also", "channels", "scale"),
    [
        (4, "", CHANNELS, [6.375 / 255, SWISH / 255, 2.55 / 255, 0.06 / 255]),
        (4, "", CHANNELS - [[2], [0]], np.array([6, 2.375, 2.55, 2]) / 127),
        (4, "", None, 6.375 / 255),
        (2, "", CHANNELS, 6.375 / 255),
        (4, "z = Conv (a, v)", CHANNELS, 6.375 / 255),
    ],
    ids=["mostly positive", "both signs", "not measured", "by twos", "read by another one, too"],
)
def test_each_channel_that_depthwise_convolutions_alone_read_has_a_grid(group, also, channels, scale):
    weights = np.ones((4, 4 // group, 1), np.float32), np.ones((4, 4, 1), np.float32)
    nodes = f"y = Conv <group = {group}> (a, w) {also or 'z = Identity (y)'}"
    model = model_of_text(
        f"g (float[n,4,8] a) => (float[n,4,8] y, float[n,4,8] z) {{ {nodes} }}", dict(zip("wv", weights, strict=True))
    )
    found = constants(write_int8(model, Rounding({"a": Bounds(-SWISH, 6.0, channels)})))
    assert found["a.scale"] == pytest.approx(np.asarray(scale), rel=1e-5)
    assert found["a.zero"].shape == found["a.scale"].shape


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(5).uniform(-1, 1, (16, 3, 8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def histograms(tiny_onnx, images):
    return measure(load_graph(tiny_onnx), [{"input": images}], bins=2048)


def ranges_of(histograms: dict[str, Histogram]):
    return {name: Bounds(each.lowest, each.amax) for name, each in histograms.items()}


def error(graph, exact, feeds):
    wanted, found = (run_graph(open_as_written(each), feeds)["logits"] for each in (exact, graph))
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize(("largest", "limit"), [(127, 0.02), (64, 0.03)])
def test_the_graph_computes_nearly_the_same(tiny_onnx, images, histograms, largest, limit):
    graph = write_int8(load_graph(tiny_onnx), Rounding(ranges_of(histograms), largest=largest))
    onnx.checker.check_model(graph, full_check=True)
    assert 0 < error(graph, load_graph(tiny_onnx), {"input": images}) < limit
    weights = [value for name, value in constants(graph).items() if name.endswith(".int8")]
    assert [value.dtype for value in weights] == [np.int8] * 3
    assert all(np.abs(value.astype(int)).max(axis=tuple(range(1, value.ndim))).min() == largest for value in weights)


def test_weights_are_stored_as_bytes_alone(tiny_onnx, histograms):
    graph = write_int8(load_graph(tiny_onnx), Rounding(ranges_of(histograms)))
    assert graph.ByteSize() < 0.5 * load_graph(tiny_onnx).ByteSize()


def test_only_bytes_without_a_sign_stand_for_what_is_never_negative(tiny_onnx, histograms):
    found = constants(write_int8(load_graph(tiny_onnx), Rounding(ranges_of(histograms))))
    types = {name.removesuffix(".zero"): value.dtype.name for name, value in found.items() if name.endswith(".zero")}
    assert types["relu"] == types["relu_2"] == "uint8"
    assert types["input"] == "int8"


def test_kept_nodes_read_floats(tiny_onnx, histograms):
    graph = write_int8(load_graph(tiny_onnx), Rounding(ranges_of(histograms), frozenset({"conv2"})))
    reading = {node.name: node.input[0] for node in graph.graph.node}
    assert reading["conv2"] == "relu"
    assert reading["conv1"] == "input.rounded"
    assert "relu" not in tensors_in_int8(load_graph(tiny_onnx), {"conv2"})


def test_a_graph_in_float16_gets_float16_scales(tiny_onnx, images, histograms, tmp_path):
    half = cast(tiny_onnx, "fp16", Keep(op_types=(), nodes=()))
    ranges = ranges_of(measure(half, [{"input": images}], bins=2048))
    graph = write_int8(half, Rounding(ranges))
    onnx.checker.check_model(graph, full_check=True)
    assert TensorProto.FLOAT not in {tensor.data_type for tensor in graph.graph.initializer}
    assert 0 < error(graph, load_graph(tiny_onnx), {"input": images}) < 0.03


def test_an_old_graph_gets_operators_of_a_version_that_has_what_it_needs():
    model = model_of_text("g (float[batch,4,8,8] x) => (float[] logits) { logits = Conv (x, w) }", {"w": W}, opset=11)
    feeds = {"x": np.random.default_rng(0).uniform(-1, 1, (2, 4, 8, 8)).astype(np.float32)}
    graph = write_int8(model, Rounding({"x": Bounds(-1, 1)}))
    onnx.checker.check_model(graph, full_check=True)
    assert 0 < error(graph, model, feeds) < 0.02


@pytest.mark.parametrize(
    ("nodes", "types"),
    [
        ("m = MatMul (g, w) logits = Add (m, b)", ("uint8", 14, 0)),
        ("m = MatMul (g, w) logits = Add (b, m)", ("uint8", 14, 0)),
        ("logits = MatMul (g, w)", ("int8", 0, 0)),
        ("m = MatMul (g, w) a = Add (m, b) logits = Add (a, g)", ("int8", 0, 0)),
        ("m = MatMul (g, w) a = Add (m, b) logits = Mul (a, m)", ("int8", 0, 0)),
    ],
    ids=["bias", "bias ahead", "no bias", "also added", "also read without the bias"],
)
def test_a_bias_takes_off_the_zero_of_what_is_mostly_positive(nodes, types):
    random = np.random.default_rng(0)
    given = {"w": random.normal(size=(8, 8)), "b": random.normal(size=8)}
    given = {name: array.astype(np.float32) for name, array in given.items() if name == "w" or "Add" in nodes}
    model = model_of_text(f"g (float[batch,8] x) => (float[] logits) {{ g = Gelu (x) {nodes} }}", given)
    graph = write_int8(model, Rounding({"g": Bounds(-0.17, 3), "a": Bounds(-9, 9)}))
    onnx.checker.check_model(graph, full_check=True)
    found = constants(graph)
    zeros = [found[node.input[2]] for node in graph.graph.node if node.input[0] in ("g", "g.int8")]
    assert (zeros[0].dtype.name, *map(int, zeros[:2])) == types
    assert 0 < error(graph, model, {"x": random.uniform(-3, 3, (16, 8)).astype(np.float32)}) < 0.01


@pytest.mark.parametrize(
    ("nodes", "shape"),
    [
        ("logits = ConvTranspose (x, w)", (4, 4, 2, 2)),
        ("f = Flatten (x) logits = Gemm (f, w)", (256, 5)),
        ("f = Flatten (x) logits = Gemm <transB = 1> (f, w)", (5, 256)),
        ("logits = MatMul (x, w)", (8, 5)),
    ],
)
def test_each_output_channel_has_a_scale(nodes, shape):
    weights = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    model = model_of_text(f"g (float[batch,4,8,8] x) => (float[] logits) {{ {nodes} }}", {"w": weights})
    feeds = {"x": np.random.default_rng(1).uniform(-1, 1, (2, 4, 8, 8)).astype(np.float32)}
    graph = write_int8(model, Rounding({"x": Bounds(-1, 1), "f": Bounds(-1, 1)}))
    assert error(graph, model, feeds) < 0.02
    assert len(constants(graph)["w.scale"]) == {4: 4, 256: 5, 5: 5, 8: 5}[shape[0]]


W = np.random.default_rng(2).normal(size=(4, 4, 1, 1)).astype(np.float32)
