import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.pass_checks import model_of_text
from support.quantized import KEEP_NOTHING, KEEPS_CONVOLUTIONS, constants, quantized_inputs

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import Keep
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.precision.calibration.cache import read_cache, write_cache
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.cast import cast
from enginewright.precision.dialect import dialect_of
from enginewright.precision.floats import nodes_in_floats
from enginewright.precision.quantize import activations, quantize, quantized_activations, set_weights

AMAX = {"input": 2.5, "relu": 7.3, "features": 3.1}
WEIGHTS = ("w1", "w2", "w3")


@pytest.fixture(scope="module")
def images(samples):
    return samples.cycled(8)["input"]


@pytest.fixture(scope="module")
def ranges(tiny_graph, images):
    """Return the largest magnitude that each tensor really takes."""
    watched = onnx.shape_inference.infer_shapes(tiny_graph)
    watched.graph.output.extend(watched.graph.value_info)
    names = [value.name for value in watched.graph.output]
    arrays = dict(zip(names, open_as_written(watched).run(names, {"input": images}), strict=True)) | {"input": images}
    return {name: float(np.abs(array).max()) for name, array in arrays.items()}


@pytest.fixture(scope="module")
def wide_onnx(tiny_graph, tmp_path_factory):
    """Save the tiny graph with an input of 32 channels, which fp8 quantizes as well."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 32
    (first,) = [tensor for tensor in model.graph.initializer if tensor.name == "w1"]
    weights = np.random.default_rng(1).normal(0, 0.3, (32, 32, 3, 3)).astype(np.float32)
    first.CopyFrom(numpy_helper.from_array(weights, "w1"))
    path = tmp_path_factory.mktemp("wide") / "model.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def int8(tiny_onnx):
    return quantize(tiny_onnx, "int8", AMAX, KEEP_NOTHING, rest="fp32")


def test_the_beginning_of_a_name_keeps_nothing(tiny_onnx, int8):
    kept = quantize(tiny_onnx, "int8", AMAX, KEEP_NOTHING.naming(["conv"]), rest="fp32")
    assert quantized_inputs(kept) == quantized_inputs(int8)


def quantized_where_all_have_ranges(path, keep=KEEP_NOTHING, rest="fp32"):
    source = onnx.load(path)
    return quantized_activations(quantize(path, "int8", dict.fromkeys(activations(source), 1.0), keep, rest), source)


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_the_activations_to_quantize_are_those_that_enter_the_arithmetic(tiny_onnx, rest):
    """The average pool's input is among them, since it runs in int8 between other int8 operators."""
    found = quantized_where_all_have_ranges(tiny_onnx, rest=rest)
    assert found == ["input", "relu", "relu_2", "pooled", "features"]


def test_tensors_of_kept_nodes_need_no_range(tiny_onnx):
    assert "features" not in quantized_where_all_have_ranges(tiny_onnx, Keep(op_types=("Gemm",), nodes=()))


def test_int8_quantizes_every_operator_that_carries_the_arithmetic(int8):
    """The classifier is among them, which ModelOpt leaves in float for a batch of one."""
    assert quantized_inputs(int8) == {
        "conv1": ["input", "w1"],
        "conv2": ["relu", "w2"],
        "classifier": ["features", "w3"],
    }


def test_int8_scales_of_activations_are_exactly_those_of_the_cache(int8, tmp_path):
    write_cache(AMAX, tmp_path / "cache")
    cached = read_cache(tmp_path / "cache")
    found = constants(int8)
    assert {name: float(found[f"{name}_scale"]) * 127 for name in AMAX} == cached


def test_int8_weights_have_a_scale_per_output_channel(int8, tiny_graph):
    found, weights = constants(int8), constants(tiny_graph)
    for name in WEIGHTS:
        largest = np.abs(weights[name]).reshape(len(weights[name]), -1).max(axis=1)
        assert found[f"{name}_scale"] == pytest.approx(largest / 127, rel=1e-6)


@pytest.mark.parametrize(("rest", "largest"), [("fp32", 127), ("fp32", 64), ("fp16", 64)])
def test_no_int8_weight_is_larger_than_the_dialect_allows(tiny_onnx, images, ranges, rest, largest):
    graph = set_weights(quantize(tiny_onnx, "int8", ranges, KEEP_NOTHING, rest), largest, {})
    known = constants(graph)
    for node in graph.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] in known:
            weights, scales = (known[name].astype(np.float32) for name in node.input[:2])
            levels = np.abs(weights).max(axis=tuple(range(1, weights.ndim))) / scales
            assert levels.max() == pytest.approx(largest, rel=0.01)
    session = open_as_written(graph)
    exact = run_graph(open_as_written(tiny_onnx), {"input": images})["logits"]
    assert np.linalg.norm(run_graph(session, {"input": images})["logits"] - exact) < 0.05 * np.linalg.norm(exact)


def test_int8_is_symmetric(int8):
    zero_points = {name: value for name, value in constants(int8).items() if name.endswith("_zero_point")}
    assert len(zero_points) == 6
    assert all(value.dtype == np.int8 and not value.any() for value in zero_points.values())


def test_fp8_scales_reach_from_the_range_to_the_largest_e4m3(tiny_onnx):
    """That is 448. The first convolution, of three channels, stays in float: TensorRT has no fp8 kernel for it."""
    fp8 = quantize(tiny_onnx, "fp8", AMAX, KEEP_NOTHING, rest="fp32")
    assert quantized_inputs(fp8) == {"conv2": ["relu", "w2"], "classifier": ["features", "w3"]}
    found = constants(fp8)
    for name in ("relu", "features"):
        assert float(found[f"{name}_scale"]) == pytest.approx(AMAX[name] / 448, rel=1e-6)
    zero_point = next(tensor for tensor in fp8.graph.initializer if tensor.name == "relu_zero_point")
    assert zero_point.data_type == TensorProto.FLOAT8E4M3FN


def scales_of_activations(model):
    """Return the scales of each activation's QuantizeLinear and DequantizeLinear, by its name before any Cast."""
    found, makers = constants(model), {name: node for node in model.graph.node for name in node.output}
    back = {node.input[0]: node for node in model.graph.node if node.op_type == "DequantizeLinear"}
    scales = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in found:
            maker = makers.get(node.input[0])
            name = maker.input[0] if maker is not None and maker.op_type == "Cast" else node.input[0]
            scales[name] = (found[node.input[1]], found[back[node.output[0]].input[1]])
    return scales


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_the_rest_may_be_float16_while_inputs_and_outputs_stay_float32(tiny_onnx, ranges, precision):
    model = quantize(tiny_onnx, precision, ranges, KEEP_NOTHING, rest="fp16")
    quantized = {"int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}[precision]
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT16, quantized}
    assert {tensor.data_type for tensor in model.graph.initializer if "zero_point" in tensor.name} == {quantized}
    assert [(end.name, end.type.tensor_type.elem_type) for end in (*model.graph.input, *model.graph.output)] == [
        ("input", TensorProto.FLOAT),
        ("logits", TensorProto.FLOAT),
    ]


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_the_rest_may_be_float32(tiny_onnx, ranges, precision):
    model = quantize(tiny_onnx, precision, ranges, KEEP_NOTHING, rest="fp32")
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in model.graph.initializer}
    assert "Cast" not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize(("precision", "levels"), [("int8", 127), ("fp8", 448)])
def test_both_scales_of_an_activation_are_the_calibrated_one(wide_onnx, precision, levels, rest):
    """A float16 graph has one constant for each of the two, and casts the graph's input before it is quantized."""
    amax = AMAX | {"relu_2": 5.1, "pooled": 2.2}
    found = scales_of_activations(quantize(wide_onnx, precision, amax, KEEP_NOTHING, rest))
    assert {"input", "relu", "features"} <= found.keys()
    for name, (quantizing, dequantizing) in found.items():
        assert quantizing.dtype == dequantizing.dtype == {"fp32": np.float32, "fp16": np.float16}[rest]
        assert float(quantizing) == pytest.approx(amax[name] / levels, rel=1e-3), name
        assert float(dequantizing) == float(quantizing), name


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize(("precision", "limit"), [("int8", 0.05), ("fp8", 0.15)])
def test_a_quantized_graph_computes_nearly_the_same_with_any_rest(tiny_onnx, ranges, images, precision, limit, rest):
    wanted = run_graph(open_as_written(tiny_onnx), {"input": images})["logits"]
    quantized = quantize(tiny_onnx, precision, ranges, KEEP_NOTHING, rest)
    got = run_graph(open_as_written(quantized), {"input": images})["logits"]
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < limit


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_sums_of_what_is_scattered_are_no_float16(tmp_path, precision):
    """ONNX Runtime's CPU provider, which runs the graph as written, has none."""
    random = np.random.default_rng(2)
    weights = {name: random.normal(0, 0.2, (32, 32)).astype(np.float32) for name in ("w1", "w2")}
    places = random.integers(0, 64, (64, 32))
    nodes = 'a = MatMul (input, w1) b = ScatterElements <axis = 0, reduction = "add"> (a, places, a) y = MatMul (b, w2)'
    model = model_of_text(f"g (float[64,32] input) => (float[64,32] y) {{ {nodes} }}", weights | {"places": places})
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, tmp_path / "model.onnx")
    feeds = {"input": random.normal(0, 1, (64, 32)).astype(np.float32)}
    made = quantize(tmp_path / "model.onnx", precision, {"input": 4.0, "b": 9.0}, KEEP_NOTHING, rest="fp16")
    wanted, got = (run_graph(open_as_written(graph), feeds)["y"] for graph in (model, made))
    assert np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 0.06


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_nodes_that_read_ranges_too_small_for_float16_are_not_quantized(tiny_onnx, ranges, precision):
    tiny = ranges | {"relu": 1e-7}
    for rest, kept in (("fp16", ["conv2"]), ("fp32", [])):
        found = nodes_in_floats(precision, onnx.load(tiny_onnx), tiny, dialect_of("tensorrt", "cuda", ""), rest)
        assert list(found) == kept
        made = quantize(tiny_onnx, precision, tiny, Keep(op_types=(), nodes=tuple(found)), rest)
        assert ("conv2" in quantized_inputs(made)) == (kept == [])


def test_a_scale_too_large_for_float16_is_refused_with_a_remedy(tiny_onnx, ranges):
    with pytest.raises(EnginewrightError, match=r"scale of relu .*keep\.rest: fp32"):
        quantize(tiny_onnx, "int8", ranges | {"relu": 1e8}, KEEP_NOTHING, rest="fp16")


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_the_file_of_the_source_graph_does_not_change(precision, tmp_path):
    """ModelOpt changes the file of some graphs, such as this one, which lacks the shapes between its nodes."""
    swish = [
        helper.make_node("Conv", ["input", "w"], ["c"], "conv"),
        helper.make_node("HardSigmoid", ["c"], ["gate"], "gate"),
        helper.make_node("Mul", ["c", "gate"], ["logits"], "swish"),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 32, 4, 4]) for name in ("input", "logits")]
    weights = numpy_helper.from_array(np.ones((32, 32, 1, 1), np.float32), "w")
    graph = helper.make_graph(swish, "swish", ends[:1], ends[1:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), tmp_path / "m.onnx")
    before = (tmp_path / "m.onnx").read_bytes()
    quantize(tmp_path / "m.onnx", precision, dict.fromkeys(["input", "c", "gate", "logits"], 2.5), KEEP_NOTHING, "fp16")
    assert (tmp_path / "m.onnx").read_bytes() == before


@pytest.mark.parametrize("kept", KEEPS_CONVOLUTIONS)
def test_kept_nodes_are_not_quantized(tiny_onnx, kept):
    model = quantize(tiny_onnx, "int8", AMAX, KEEPS_CONVOLUTIONS[kept], rest="fp32")
    assert quantized_inputs(model).keys() == {"classifier"}


def test_converting_prints_nothing(tiny_onnx, capfd):
    quantize(tiny_onnx, "int8", AMAX, KEEP_NOTHING, rest="fp32")
    cast(tiny_onnx, "fp16", KEEP_NOTHING)
    assert capfd.readouterr() == ("", "")


def test_only_floats_of_a_graph_of_several_inputs_are_quantized(pair_onnx, pair_feeds):
    names = quantized_where_all_have_ranges(pair_onnx)
    assert {"image", "both"} <= set(names)
    assert "numbers" not in names
    quantized = quantize(pair_onnx, "int8", dict.fromkeys(names, 4.0), KEEP_NOTHING, rest="fp32")
    for sizes in ((1, 8, 8), (3, 16, 12)):
        wanted, got = (run_graph(open_as_written(graph), pair_feeds(*sizes)) for graph in (pair_onnx, quantized))
        for name, values in wanted.items():
            assert 0 < np.linalg.norm(got[name] - values) / np.linalg.norm(values) < 0.1, name


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_a_mask_of_integers_needs_the_range_of_the_floats_that_it_becomes(tmp_path, rest):
    """A mask weighs tokens so. ModelOpt casts integers to float16 at once where the rest is float16."""
    nodes = "m = MatMul (x, w) u = Transpose <perm = [0, 2, 1]> (mask) f = Cast<to=1>(u) y = MatMul (f, m)"
    weights = np.random.default_rng(0).normal(0, 0.2, (32, 32)).astype(np.float32)
    graph = f"g (float[n,32,32] x, int64[n,32,32] mask) => (float[n,32,32] y) {{ {nodes} }}"
    path = tmp_path / "model.onnx"
    onnx.save(model_of_text(graph, {"w": weights}), path)
    names = quantized_where_all_have_ranges(path, rest=rest)
    assert "f" in names
    assert "u" not in names


@pytest.fixture(scope="module")
def half_onnx(tiny_onnx, tmp_path_factory):
    """Save a user's file in float16, whose input and output are float32."""
    path = tmp_path_factory.mktemp("half") / "model.onnx"
    onnx.save(cast(tiny_onnx, "fp16", KEEP_NOTHING), path)
    return path


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_a_float16_graph_is_quantized_by_its_measured_ranges(half_onnx, tiny_onnx, samples, rest):
    found = measure(onnx.load(half_onnx), samples.batches(8), bins=2048)
    amax = {name: histogram.amax for name, histogram in found.items()}
    assert set(quantized_where_all_have_ranges(half_onnx)) <= amax.keys()
    quantized = quantize(half_onnx, "int8", amax, KEEP_NOTHING, rest)
    assert quantized_inputs(quantized).keys() >= {"conv1", "conv2", "classifier"}
    feeds = samples.cycled(len(samples))
    wanted, got = (run_graph(open_as_written(graph), feeds)["logits"] for graph in (tiny_onnx, quantized))
    assert 1e-3 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 5e-2


def test_fp8_of_a_float16_graph_has_float16_scales(half_onnx, samples):
    amax = {name: histogram.amax for name, histogram in measure(onnx.load(half_onnx), samples.batches(8), 2048).items()}
    for name, scales in scales_of_activations(quantize(half_onnx, "fp8", amax, KEEP_NOTHING, "fp32")).items():
        assert all(
            scale.dtype == np.float16 and float(scale) == pytest.approx(amax[name] / 448, rel=1e-3) for scale in scales
        )
