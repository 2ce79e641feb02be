import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from enginery.core.errors import EngineryError
from enginery.core.params.calibration import CalibrationParams
from enginery.core.params.precisions import Keep
from enginery.graph.as_written import open_as_written, run_graph
from enginery.graph.bf16_twin import float32_twin
from enginery.quantization.calibration.cache import read_cache, write_cache
from enginery.quantization.calibration.measure import measure
from enginery.quantization.calibration.provenance import provided_provenance
from enginery.quantization.cast import cast
from enginery.quantization.conversion import require_known
from enginery.quantization.quantize import nodes_of_tiny_inputs, quantize, tensors_to_quantize
from stages.convert import checked_ranges

AMAX = {"input": 2.5, "relu": 7.3, "features": 3.1}
WEIGHTS = ("w1", "w2", "w3")
EVERYTHING = Keep(op_types=(), nodes=())


@pytest.fixture(scope="module")
def images(samples):
    return samples.cycled(8)["input"]


@pytest.fixture(scope="module")
def ranges(tiny_graph, images):
    """The largest magnitude that each tensor really takes."""
    watched = onnx.shape_inference.infer_shapes(tiny_graph)
    watched.graph.output.extend(watched.graph.value_info)
    names = [value.name for value in watched.graph.output]
    arrays = dict(zip(names, open_as_written(watched).run(names, {"input": images}), strict=True)) | {"input": images}
    return {name: float(np.abs(array).max()) for name, array in arrays.items()}


@pytest.fixture(scope="module")
def wide_onnx(tiny_graph, tmp_path_factory):
    """With an input of 32 channels, which fp8 quantizes as well."""
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
    return quantize(tiny_onnx, "int8", AMAX, EVERYTHING, rest="fp32")


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def quantized_inputs(model):
    """Of each operator whose first input comes out of a DequantizeLinear: its name, and what was quantized."""
    makers = {name: node for node in model.graph.node for name in node.output}

    def origin(name):
        dequantize = makers.get(name)
        if dequantize is None or dequantize.op_type != "DequantizeLinear":
            return None
        return makers[dequantize.input[0]].input[0]

    return {node.name: [origin(name) for name in node.input[:2]] for node in model.graph.node if origin(node.input[0])}


def kept_in_float32(model):
    """The operators that compute on float32 weights."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return [
        node.name for node in model.graph.node if any(types.get(name) == TensorProto.FLOAT for name in node.input[1:])
    ]


def test_the_activations_to_quantize_are_those_that_enter_the_arithmetic(tiny_onnx):
    """And the average pool's, which runs in int8 where both its sides are."""
    assert tensors_to_quantize(tiny_onnx, "int8", EVERYTHING) == ["input", "relu", "relu_2", "pooled", "features"]


def test_what_is_kept_in_float_needs_no_range(tiny_onnx):
    assert "features" not in tensors_to_quantize(tiny_onnx, "int8", Keep(op_types=("Gemm",), nodes=()))


def test_int8_quantizes_every_operator_that_carries_the_arithmetic(int8):
    """The classifier too, which ModelOpt leaves in float when it is shown a batch of one."""
    assert quantized_inputs(int8) == {
        "conv1": ["input", "w1"],
        "conv2": ["relu", "w2"],
        "classifier": ["features", "w3"],
    }


def test_int8_scales_of_activations_are_the_caches_to_the_bit(int8, tmp_path):
    write_cache(AMAX, tmp_path / "cache")
    cached = read_cache(tmp_path / "cache")
    found = constants(int8)
    assert {name: float(found[f"{name}_scale"]) * 127 for name in AMAX} == cached


def test_int8_weights_have_a_scale_per_output_channel(int8, tiny_graph):
    found, original = constants(int8), constants(tiny_graph)
    for name in WEIGHTS:
        largest = np.abs(original[name]).reshape(len(original[name]), -1).max(axis=1)
        assert found[f"{name}_scale"] == pytest.approx(largest / 127, rel=1e-6)


def test_int8_is_symmetric(int8):
    zero_points = {name: value for name, value in constants(int8).items() if name.endswith("_zero_point")}
    assert len(zero_points) == 6
    assert all(value.dtype == np.int8 and not value.any() for value in zero_points.values())


def test_fp8_scales_reach_from_the_range_to_the_largest_e4m3(tiny_onnx):
    """448 is that; and the first convolution, of three channels, stays in float, where TensorRT has no fp8 kernel."""
    fp8 = quantize(tiny_onnx, "fp8", AMAX, EVERYTHING, rest="fp32")
    assert quantized_inputs(fp8) == {"conv2": ["relu", "w2"], "classifier": ["features", "w3"]}
    found = constants(fp8)
    for name in ("relu", "features"):
        assert float(found[f"{name}_scale"]) == pytest.approx(AMAX[name] / 448, rel=1e-6)
    zero_point = next(tensor for tensor in fp8.graph.initializer if tensor.name == "relu_zero_point")
    assert zero_point.data_type == TensorProto.FLOAT8E4M3FN


def pairs(model):
    """Of each activation that is quantized: its name before any Cast, and its two scales, there and back."""
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
def test_the_unquantized_rest_is_float16_where_asked_and_inputs_and_outputs_stay_float32(tiny_onnx, ranges, precision):
    model = quantize(tiny_onnx, precision, ranges, EVERYTHING, rest="fp16")
    quantized = {"int8": TensorProto.INT8, "fp8": TensorProto.FLOAT8E4M3FN}[precision]
    assert {tensor.data_type for tensor in model.graph.initializer} == {TensorProto.FLOAT16, quantized}
    assert {tensor.data_type for tensor in model.graph.initializer if "zero_point" in tensor.name} == {quantized}
    assert [(end.name, end.type.tensor_type.elem_type) for end in (*model.graph.input, *model.graph.output)] == [
        ("input", TensorProto.FLOAT),
        ("logits", TensorProto.FLOAT),
    ]


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_the_rest_is_float32_where_asked(tiny_onnx, ranges, precision):
    model = quantize(tiny_onnx, precision, ranges, EVERYTHING, rest="fp32")
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in model.graph.initializer}
    assert "Cast" not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize(("precision", "levels"), [("int8", 127), ("fp8", 448)])
def test_an_activation_comes_back_by_the_scale_that_it_went_by_and_that_is_calibrated(
    wide_onnx, precision, levels, rest
):
    """A float16 graph has a constant for each direction, and casts the graph's input before it is quantized."""
    amax = AMAX | {"relu_2": 5.1, "pooled": 2.2}
    found = pairs(quantize(wide_onnx, precision, amax, EVERYTHING, rest))
    assert {"input", "relu", "features"} <= found.keys()
    for name, (there, back) in found.items():
        assert there.dtype == back.dtype == {"fp32": np.float32, "fp16": np.float16}[rest]
        assert float(there) == pytest.approx(amax[name] / levels, rel=1e-3), name
        assert float(back) == float(there), name


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
@pytest.mark.parametrize(("precision", "limit"), [("int8", 0.05), ("fp8", 0.15)])
def test_a_quantized_graph_computes_what_the_graph_computes_whatever_its_rest(
    tiny_onnx, ranges, images, precision, limit, rest
):
    wanted = run_graph(open_as_written(tiny_onnx), {"input": images})["logits"]
    quantized = quantize(tiny_onnx, precision, ranges, EVERYTHING, rest)
    got = run_graph(open_as_written(quantized), {"input": images})["logits"]
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < limit


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_what_reads_a_range_that_float16_cannot_scale_stays_in_float16(tiny_onnx, ranges, precision):
    tiny = ranges | {"relu": 1e-7}
    assert nodes_of_tiny_inputs(tiny_onnx, precision, tiny, "fp16") == ["conv2"]
    assert nodes_of_tiny_inputs(tiny_onnx, precision, tiny, "fp32") == []
    assert "conv2" not in quantized_inputs(quantize(tiny_onnx, precision, tiny, EVERYTHING, rest="fp16"))
    assert "conv2" in quantized_inputs(quantize(tiny_onnx, precision, tiny, EVERYTHING, rest="fp32"))


def test_a_scale_that_float16_cannot_hold_is_refused_with_the_way_out(tiny_onnx, ranges):
    with pytest.raises(EngineryError, match=r"scale of relu .*keep\.rest: fp32"):
        quantize(tiny_onnx, "int8", ranges | {"relu": 1e8}, EVERYTHING, rest="fp16")


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_the_graph_that_is_quantized_stays_as_it_was_on_disk(precision, tmp_path):
    """ModelOpt writes some graphs back, changed: here, one without the shapes that lie between its nodes."""
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
    quantize(tmp_path / "m.onnx", precision, dict.fromkeys(["input", "c", "gate", "logits"], 2.5), EVERYTHING, "fp16")
    assert (tmp_path / "m.onnx").read_bytes() == before


@pytest.mark.parametrize(
    "keep",
    [
        Keep(op_types=("Conv",), nodes=()),
        Keep(op_types=(), nodes=("conv1", "conv2")),
        Keep(op_types=(), nodes=("conv.*",)),
    ],
    ids=["types", "names", "pattern"],
)
@pytest.mark.parametrize("precision", ["int8", "fp16", "bf16"])
def test_what_is_to_be_kept_stays_in_float32(tiny_onnx, precision, keep):
    if precision == "int8":
        assert quantized_inputs(quantize(tiny_onnx, "int8", AMAX, keep, rest="fp32")).keys() == {"classifier"}
    else:
        assert kept_in_float32(cast(tiny_onnx, precision, keep)) == ["conv1", "conv2"]


@pytest.mark.parametrize(("precision", "low"), [("fp16", TensorProto.FLOAT16), ("bf16", TensorProto.BFLOAT16)])
def test_half_precision_is_inside_and_inputs_and_outputs_stay_float32(tiny_onnx, precision, low):
    model = cast(tiny_onnx, precision, EVERYTHING)
    onnx.checker.check_model(model, full_check=True)
    assert {tensor.data_type for tensor in model.graph.initializer} == {low}
    ends = [*model.graph.input, *model.graph.output]
    assert [(end.name, end.type.tensor_type.elem_type) for end in ends] == [
        ("input", TensorProto.FLOAT),
        ("logits", TensorProto.FLOAT),
    ]
    assert [node.op_type for node in model.graph.node].count("Cast") == 2


def test_fp16_computes_what_the_graph_computes_up_to_rounding(tiny_onnx, samples):
    graphs = (tiny_onnx, cast(tiny_onnx, "fp16", EVERYTHING))
    wanted, got = (run_graph(open_as_written(graph), samples.cycled(8))["logits"] for graph in graphs)
    assert 0 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 2e-3


def test_converting_prints_nothing(tiny_onnx, capfd):
    quantize(tiny_onnx, "int8", AMAX, EVERYTHING, rest="fp32")
    cast(tiny_onnx, "fp16", EVERYTHING)
    assert capfd.readouterr() == ("", "")


def test_a_cache_that_lacks_a_tensor_is_refused_and_not_quantized_in_part(tiny_onnx, samples, tmp_path):
    cache = tmp_path / "calibration.cache"
    some = {"input": 2.5, "relu": 7.3, "relu_2": 4.0, "pooled": 3.1}
    write_cache(some, cache)
    params = CalibrationParams(method="max", percentile=100, bins=2048, batch=8, file="data/given.cache")
    provided_provenance(params, cache, some).write(tmp_path / "calibration.json")
    with pytest.raises(EngineryError, match=r"no range for 1 of the 5 tensors that are quantized: features\."):
        checked_ranges("int8", tiny_onnx, tmp_path, samples, EVERYTHING)


@pytest.mark.parametrize(
    ("keep", "complaint"),
    [
        (Keep(op_types=("Convv",), nodes=()), "keep.op_types: the graph has no Convv; it has Conv, "),
        (Keep(op_types=(), nodes=("nosuch.*",)), "keep.nodes: no node of the graph is named 'nosuch.*', such as "),
    ],
)
def test_what_is_kept_must_exist(tiny_graph, keep, complaint):
    with pytest.raises(EngineryError, match=re.escape(complaint)):
        require_known(keep, tiny_graph)


def test_what_is_kept_may_be_a_pattern(tiny_graph):
    require_known(Keep(op_types=("Gemm",), nodes=("conv.*",)), tiny_graph)


def test_a_graph_of_several_inputs_and_sizes_is_quantized_where_it_computes_on_floats(pair_onnx, pair_feeds):
    names = tensors_to_quantize(pair_onnx, "int8", EVERYTHING)
    assert {"image", "both"} <= set(names)
    assert "numbers" not in names
    quantized = quantize(pair_onnx, "int8", dict.fromkeys(names, 4.0), EVERYTHING, rest="fp32")
    for sizes in ((1, 8, 8), (3, 16, 12)):
        wanted, got = (run_graph(open_as_written(graph), pair_feeds(*sizes)) for graph in (pair_onnx, quantized))
        for name, values in wanted.items():
            assert 0 < np.linalg.norm(got[name] - values) / np.linalg.norm(values) < 0.1, name


def test_a_graph_that_takes_only_some_sizes_is_shown_images_of_the_samples_size(samples, tmp_path):
    """As a U-Net does, whose halves meet only where the size divides by what it shrinks by: here 8, and not 224."""
    rng = np.random.default_rng(0)
    weights = {"w": (16, 3, 3, 3), "u": (16, 16, 3, 3), "v": (16, 32, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["seen"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("AveragePool", ["seen"], ["small"], "pool", kernel_shape=[3, 3], strides=[5, 5]),
        helper.make_node("ConvTranspose", ["small", "u"], ["large"], "up", strides=[5, 5]),
        helper.make_node("Concat", ["seen", "large"], ["both"], "concat", axis=1),
        helper.make_node("Conv", ["both", "v"], ["map"], "head"),
    ]
    graph = helper.make_graph(
        nodes,
        "u",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("map", TensorProto.FLOAT, ["batch", 16, "height", "width"])],
        [numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name) for name, shape in weights.items()],
    )
    path, ranges = tmp_path / "model.onnx", dict.fromkeys(["input", "seen", "small", "large", "both"], 4.0)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    write_cache(ranges, tmp_path / "calibration.cache")
    params = CalibrationParams(method="max", percentile=100, bins=2048, batch=8, file="data/given.cache")
    provided_provenance(params, tmp_path / "calibration.cache", ranges).write(tmp_path / "calibration.json")
    amax = checked_ranges("int8", path, tmp_path, samples, EVERYTHING)
    quantized = quantize(path, "int8", amax, EVERYTHING, "fp32", samples.sizes)
    assert quantized_inputs(quantized)["conv"] == ["input", "w"]


def test_what_modelopt_cannot_do_with_a_graph_is_a_sentence(tiny_graph, tmp_path):
    """Such as an output of float64, which a file of the user's own may have."""
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    model.graph.node.append(helper.make_node("Cast", ["logits"], ["exact"], "widen", to=TensorProto.DOUBLE))
    model.graph.output[0].name = "exact"
    model.graph.output[0].type.tensor_type.elem_type = TensorProto.DOUBLE
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(EngineryError, match=r"^ModelOpt cannot make fp16 of the graph: .*exact.*; keep what it names"):
        cast(tmp_path / "model.onnx", "fp16", EVERYTHING)


@pytest.fixture(scope="module")
def unet_onnx(tmp_path_factory):
    """For images of any even size: halved, doubled again, and laid beside what it was."""
    rng = np.random.default_rng(7)
    shapes = {"w1": (8, 3, 3, 3), "w2": (8, 8, 3, 3), "up": (8, 8, 2, 2), "w3": (2, 16, 1, 1)}
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["image", "w1"], ["wide"], "conv1", pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["wide"], ["half"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
            helper.make_node("Conv", ["half", "w2"], ["deep"], "conv2", pads=[1, 1, 1, 1]),
            helper.make_node("ConvTranspose", ["deep", "up"], ["whole"], "double", strides=[2, 2]),
            helper.make_node("Concat", ["whole", "wide"], ["both"], "concat", axis=1),
            helper.make_node("Conv", ["both", "w3"], ["mask"], "conv3"),
        ],
        "unet",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("mask", TensorProto.FLOAT, ["batch", 2, "height", "width"])],
        [numpy_helper.from_array(rng.normal(0, 0.3, s).astype(np.float32), name) for name, s in shapes.items()],
    )
    path = tmp_path_factory.mktemp("unet") / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 2e-3), ("bf16", 2e-2)])
def test_a_network_that_no_image_of_one_pixel_passes_is_cast(unet_onnx, precision, limit):
    converted = cast(unet_onnx, precision, EVERYTHING, {"height": 32, "width": 32})
    assert kept_in_float32(converted) == []
    given, made = (
        open_as_written(unet_onnx),
        open_as_written(float32_twin(converted) if precision == "bf16" else converted),
    )
    for size in (16, 32, 64):
        feeds = {"image": np.random.default_rng(size).normal(size=(2, 3, size, size)).astype(np.float32)}
        wanted, got = run_graph(given, feeds)["mask"], run_graph(made, feeds)["mask"]
        assert got.shape == (2, 2, size, size)
        assert 0 < np.linalg.norm(got - wanted) < limit * np.linalg.norm(wanted)


@pytest.fixture(scope="module")
def half_onnx(tiny_onnx, tmp_path_factory):
    """A file that came in float16, but for its input and output."""
    path = tmp_path_factory.mktemp("half") / "model.onnx"
    onnx.save(cast(tiny_onnx, "fp16", EVERYTHING), path)
    return path


@pytest.mark.parametrize("rest", ["fp32", "fp16"])
def test_a_graph_of_float16_is_quantized_by_the_ranges_that_were_measured(half_onnx, tiny_onnx, samples, rest):
    found = measure(onnx.load(half_onnx), samples.batches(8), bins=2048)
    amax = {name: histogram.amax for name, histogram in found.items()}
    assert set(tensors_to_quantize(half_onnx, "int8", EVERYTHING)) <= amax.keys()
    quantized = quantize(half_onnx, "int8", amax, EVERYTHING, rest)
    assert quantized_inputs(quantized).keys() >= {"conv1", "conv2", "classifier"}
    feeds = samples.cycled(len(samples))
    wanted, got = (run_graph(open_as_written(graph), feeds)["logits"] for graph in (tiny_onnx, quantized))
    assert 1e-3 < np.linalg.norm(got - wanted) / np.linalg.norm(wanted) < 5e-2


def test_fp8_of_a_float16_graph_has_float16_scales(half_onnx, samples):
    amax = {name: histogram.amax for name, histogram in measure(onnx.load(half_onnx), samples.batches(8), 2048).items()}
    for name, scales in pairs(quantize(half_onnx, "fp8", amax, EVERYTHING, "fp32")).items():
        assert all(
            scale.dtype == np.float16 and float(scale) == pytest.approx(amax[name] / 448, rel=1e-3) for scale in scales
        )
