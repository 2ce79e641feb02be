"""`calibration.method: auto`: the ranges that cost the outputs least."""

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginewright.core.params.precisions import METHODS, CalibrationParams
from enginewright.precision.calibration.auto import MethodTrial, choose_by_outputs, choose_ranges, output_errors
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.dialect import dialect_of
from enginewright.precision.floats import nodes_in_floats

CPU = dialect_of("openvino", "cpu", "avx512_vnni")
FEW_LARGE = np.float32(40)  # what a few numbers of `a` and `b` reach, the others are below 1
LOWEST = {"a": -40.0, "gained": -40.0}
W = np.eye(16, dtype=np.float32)
V = np.diag([0.0, *[1.0] * 15]).astype(np.float32)  # leaves out the first column, where `b` is large


@pytest.fixture
def trial():
    """Two branches: the outputs need the few large numbers of `a`, and hardly see those of `b`."""
    ends = "(float[n,16] a, float[n,16] b) => (float[n,16] y, float[n,16] z)"
    nodes = "of_a = MatMul (a, w) gained = Mul (b, gain) of_b = MatMul (gained, v) y = Add (of_a, bias) z = Relu (of_b)"
    constants = {"w": W, "v": V, "gain": np.float32(1), "bias": np.ones(16, np.float32)}
    return MethodTrial(model_of_text(f"g {ends} {{ {nodes} }}", constants), LOWEST)


def feeds(seed):
    rng = np.random.default_rng(seed)
    arrays = {name: rng.uniform(-1, 1, (8, 16)).astype(np.float32) for name in "ab"}
    arrays["a"][:, :4] = arrays["b"][:, 0:1] = FEW_LARGE
    return arrays


def cost_of(found, exact):
    pairs = list(zip(found, exact, strict=True))
    of_each = [np.linalg.norm(f - e, axis=1) / np.linalg.norm(e, axis=1) for f, e in pairs]
    of_all = [np.linalg.norm(f - e) / np.linalg.norm(e) for f, e in pairs]
    return np.sqrt(np.mean(of_each) * np.mean(of_all))


def ranges():
    """The methods `max` and `mse` keep all, the others clip to 1."""
    clipped = dict.fromkeys(LOWEST, 1.0)
    return {method: dict.fromkeys(clipped, 40.0) if method in ("max", "mse") else clipped for method in METHODS}


def test_each_tensor_takes_the_method_that_costs_the_outputs_least(trial):
    best, found = choose_by_outputs(trial, ranges(), feeds(0), feeds(1))
    assert best == "max"
    assert found.amax == {"a": 40.0, "gained": 1.0}
    assert found.methods["gained"] in ("typical", "percentile", "entropy")
    assert found.costs["auto"] < min(found.costs[method] for method in METHODS)


def test_a_choice_that_does_not_prove_itself_is_not_taken(trial):
    """Only the samples to choose by make it look as if large numbers of `gained` did not matter."""
    other = feeds(1)
    other["b"][:, 1:] *= FEW_LARGE
    _, found = choose_by_outputs(trial, ranges(), feeds(0), other)
    assert found.amax == {"a": 40.0, "gained": 40.0}
    assert found.costs["auto"] == found.costs["max"]


def test_the_cost_is_the_geometric_mean_of_the_errors_of_a_sample_and_of_all_at_once(trial):
    given = feeds(0)
    scale = {"a": 0.5, "gained": 0.25}
    cost = trial.on(given)({name: step * 127 for name, step in scale.items()})
    rounded = {
        name: np.clip(np.rint(given[name[0] if name == "a" else "b"] / step), -128, 127) * step
        for name, step in scale.items()
    }
    exact = [given["a"] + 1, np.maximum(given["b"] @ V, 0)]
    found = [rounded["a"] + 1, np.maximum(rounded["gained"] @ V, 0)]
    assert cost == pytest.approx(cost_of(found, exact), rel=1e-5)


def test_a_sample_with_large_answers_has_a_say():
    """Clipped, seven of eight samples are closer, and most of the eighth is lost."""
    trial = MethodTrial(
        model_of_text("g (float[n,16] a) => (float[n,16] y) { y = MatMul (a, w) }", {"w": W}), {"a": -1.0}
    )
    given = {"a": np.random.default_rng(0).uniform(-1, 1, (8, 16)).astype(np.float32)}
    given["a"][0] *= FEW_LARGE
    found = {reach: np.clip(np.rint(given["a"] / reach * 127), -128, 127) / 127 * reach for reach in (1.0, 40.0)}
    clipped, whole = (output_errors([[each]], [[given["a"]]]).mean for each in found.values())
    assert clipped < whole
    assert trial.on(given)({"a": 40.0}) < trial.on(given)({"a": 1.0})


@pytest.mark.parametrize("method", ["auto", "max"])
def test_every_tensor_has_a_range_and_only_a_choice_has_costs(method, tiny_graph, samples):
    histograms = measure(tiny_graph, samples.batches(4), bins=2048)
    params = CalibrationParams(method=method, percentile=99.9, bins=2048, batch=8, file=None)
    found = choose_ranges(tiny_graph, histograms, samples, params, CPU)
    assert found.amax.keys() == histograms.keys()
    assert all(0 < found.amax[name] <= histograms[name].amax for name in histograms)
    assert found.methods.keys() == (histograms.keys() if method == "auto" else set())
    assert found.costs.keys() == ({*METHODS, "auto"} if method == "auto" else set())


def test_what_is_never_negative_has_the_whole_grid_for_its_magnitudes():
    model = model_of_text("g (float[n,16] a) => (float[n,16] y) { y = MatMul (a, w) }", {"w": W})
    given = {"a": np.random.default_rng(0).uniform(0, 1, (64, 16)).astype(np.float32)}
    signed, hardly, unsigned = (MethodTrial(model, {"a": lowest}).on(given)({"a": 1.0}) for lowest in (-1.0, -0.1, 0.0))
    assert hardly == signed
    assert unsigned == pytest.approx(signed / 2, rel=0.05)


@pytest.mark.parametrize(("is_symmetric", "step"), [(False, 1.1 / 255), (True, 1 / 127)])
def test_tensors_of_one_grid_reach_below_zero_together(is_symmetric, step):
    """Where little is negative, a byte without a sign has finer steps, which TensorRT does not know."""
    nodes = "{ p = Relu (a) c = Concat <axis = 1> (p, b) y = MatMul (c, w) }"
    ends = "(float[n,16] a, float[n,16] b) => (float[n,32] y)"
    model = model_of_text(f"g {ends} {nodes}", {"w": np.eye(32, dtype=np.float32)})
    trial = MethodTrial(model, {"p": 0.0, "b": -0.1}, is_symmetric=is_symmetric)
    given = {"a": np.linspace(0, 1, 160, dtype=np.float32).reshape(10, 16), "b": np.zeros((10, 16), np.float32)}
    rounded = np.rint(given["a"] / step) * step
    assert trial.on(given)({"p": 1.0, "b": 0.1}) == pytest.approx(cost_of([rounded], [given["a"]]), rel=1e-4)


def test_what_depthwise_convolutions_read_has_a_grid_for_each_channel():
    text = "g (float[n,16,1] a) => (float[n,16,1] y) { y = Conv <group = 16> (a, w) }"
    model = model_of_text(text, {"w": np.ones((16, 1, 1), np.float32)})
    given = {"a": np.random.default_rng(0).uniform(-1, 1, (64, 16, 1)).astype(np.float32)}
    reach = np.geomspace(0.02, 1, 16, dtype=np.float32)[:, None]
    given["a"] *= reach
    trial = MethodTrial(model, {"a": -1.0}, channels={"a": np.stack([-reach[:, 0], reach[:, 0]])})
    rounded = np.rint(given["a"] / reach * 127) / 127 * reach
    assert trial.groups == []
    assert trial.on(given)({}) == pytest.approx(cost_of([rounded[..., 0]], [given["a"][..., 0]]), rel=1e-4)


def test_kept_nodes_are_exact():
    model = model_of_text("g (float[n,16] a) => (float[n,16] y) { y = MatMul (a, w) }", {"w": W})
    model.graph.node[0].name = "product"
    assert MethodTrial(model, LOWEST, {"product"}).groups == []


class Few:
    """Samples of two stacks of matrices."""

    def __len__(self):
        return 8

    def read_at(self, places):
        rng = np.random.default_rng(0)
        return {name: rng.uniform(-1, 1, (8, 32, 32)).astype(np.float32)[places] for name in "ab"}


@pytest.mark.parametrize(("instructions", "is_rounded"), [("avx512_vnni", True), ("avx2", False)])
def test_what_conversion_leaves_in_floats_is_exact(instructions, is_rounded):
    """A product of two activations, which overflows where bytes are added in 16 bits."""
    graph = model_of_text("g (float[n,32,32] a, float[n,32,32] b) => (float[n,32,32] y) { y = MatMul (a, b) }")
    graph.graph.node[0].name = "product"
    wanted = dialect_of("openvino", "cpu", instructions)
    histograms = measure(graph, [Few().read_at(np.arange(8))], bins=2048)
    params = CalibrationParams(method="auto", percentile=99.9, bins=2048, batch=8, file=None)
    found = choose_ranges(graph, histograms, Few(), params, wanted)
    assert (nodes_in_floats("int8", graph, found.amax, wanted, wanted.rest) == {}) == is_rounded
    assert (found.costs["max"] > 0) == is_rounded
