"""OpenVINO's engines give what the graph means, in the cases that OpenVINO gets wrong without help."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.pass_checks import model_of_text

from enginewright.core.params.build import Profile, Range
from enginewright.engine.runtimes import find_cpu, load_runtime
from enginewright.engine.runtimes.openvino_graph import read_graph
from enginewright.graph.as_written import open_as_written
from enginewright.graph.read_interface import read_blueprint
from enginewright.precision.dialect import dialect_of
from enginewright.precision.floats import nodes_in_floats
from enginewright.precision.in_dialect import rewritten
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8

LARGEST_WEIGHT = dialect_of("openvino", "cpu", find_cpu().capability).largest_weight
ROUNDING = {"scale": np.float32(0.02), "zero": np.int8(0)}
IMAGES = np.random.default_rng(1).normal(size=(16, 24, 1, 1)).astype(np.float32)


def save(graph, path):
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)


def opened(path, build, inference, folder, requests=1):
    openvino, blueprint = load_runtime("openvino"), read_blueprint(path, build)
    openvino.compile(path, blueprint, folder)
    return openvino.load(folder, blueprint, inference, requests)


def from_one(build):
    return build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=8, max=16))})


@pytest.fixture(scope="module")
def squeezed(tmp_path_factory):
    """An int8 convolution of single pixels, as in squeeze-and-excitation: its kernel depends on the batch size."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (96, 24, 1, 1)).astype(np.int8),
        "w_scale": np.full(96, 0.01, np.float32),
        "w_zero": np.zeros(96, np.int8),
        "bias": rng.normal(size=96).astype(np.float32),
        "scale": np.float32(0.02),
        "zero": np.int8(0),
    }
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["input", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["x"]),
            helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], axis=0),
            helper.make_node("Conv", ["x", "weights", "bias"], ["logits"]),
        ],
        "squeezed",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 24, 1, 1])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 96, 1, 1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path_factory.mktemp("squeezed") / "model.onnx"
    save(graph, path)
    return path


@pytest.mark.parametrize("requests", [1, 2])
def test_a_small_batch_after_a_large_one_is_right(squeezed, build, inference, requests, tmp_path):
    sessions = opened(squeezed, from_one(build), inference, tmp_path, requests)
    assert len(sessions) == requests
    for session in sessions * 3:
        for batch in (16, 8, 2, 1, 16, 3):
            wanted = open_as_written(squeezed).run(None, {"input": IMAGES[:batch]})[0]
            assert session.run({"input": IMAGES[:batch]})["logits"] == pytest.approx(wanted, abs=1e-3)


def test_a_depthwise_convolution_reads_each_channel_by_its_own_scale(build, inference, tmp_path):
    rng = np.random.default_rng(0)
    reach = np.geomspace(0.05, 4, 32)
    images = (rng.uniform(-0.06, 1, (16, 32, 6, 6)) * reach[:, None, None]).astype(np.float32)
    constants = {
        "w": rng.normal(size=(32, 1, 3, 3)).astype(np.float32),
        "v": np.eye(32, dtype=np.float32)[..., None, None],
    }
    nodes = "x = Conv <group = 32, pads = [1, 1, 1, 1]> (a, w) y = Conv (x, v)"
    exact = model_of_text(f"g (float[n,32,6,6] a) => (float[n,32,6,6] y) {{ {nodes} }}", constants)
    ranges = {"a": Bounds(-0.24, 4.0, np.stack([-0.06 * reach, reach])), "x": Bounds(-40.0, 40.0)}
    path = tmp_path / "model.onnx"
    onnx.save(write_int8(exact, Rounding(ranges, largest=LARGEST_WEIGHT)), path)
    (session,) = opened(path, from_one(build), inference, tmp_path)
    for batch in (16, 1, 8):
        wanted = open_as_written(path).run(None, {"a": images[:batch]})[0]
        assert np.abs(session.run({"a": images[:batch]})["y"] - wanted).max() < 0.4  # a step of x is 40 / 127


@pytest.mark.parametrize("operator", ["Mul", "Div"])
def test_factors_per_channel_keep_their_sign_before_a_quantization(operator, build, inference, tmp_path):
    """ConvNeXt's layer scale is such a case. OpenVINO would apply the first channel's factor to all."""
    constants = {
        "factors": np.float32([-0.2, 0.5, -0.7, 1.5]).reshape(4, 1, 1),
        "scale": np.float32(0.05),
        "zero": np.int8(0),
    }
    graph = helper.make_graph(
        [
            helper.make_node(operator, ["input", "factors"], ["scaled"]),
            helper.make_node("QuantizeLinear", ["scaled", "scale", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["logits"]),
        ],
        "scaled",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 4, 2, 2])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4, 2, 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path / "model.onnx"
    save(graph, path)
    (session,) = opened(path, build, inference, tmp_path)
    images = IMAGES.ravel()[:32].reshape(2, 4, 2, 2)
    wanted = open_as_written(path).run(None, {"input": images})[0]
    assert session.run({"input": images})["logits"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(
    "moved",
    [
        "p = Mul (input, row) m = ReduceMean <keepdims = 0> (p, first)",  # the mean of tokens behind an RMSNorm
        "p = Div (input, row) m = ReduceMax <keepdims = 0> (p, first)",
    ],
)
def test_factors_per_channel_stay_with_their_channels_where_axes_move(moved, build, inference, tmp_path):
    """OpenVINO would apply the first channel's factor to all, whatever their signs."""
    constants = {"row": np.linspace(0.5, 1.5, 12, dtype=np.float32), "first": np.array([1])} | ROUNDING
    nodes = f"{moved} q = QuantizeLinear (m, scale, zero) y = DequantizeLinear (q, scale, zero)"
    path = tmp_path / "model.onnx"
    onnx.save(model_of_text(f"g (float[batch,8,12] input) => (float[] y) {{ {nodes} }}", constants), path)
    (session,) = opened(path, build, inference, tmp_path)
    tokens = IMAGES.ravel()[:192].reshape(2, 8, 12)
    wanted = open_as_written(path).run(None, {"input": tokens})[0]
    assert session.run({"input": tokens})["y"] == pytest.approx(wanted, abs=1e-4)


def test_one_place_of_a_product_has_no_axis_more(build, inference, tmp_path):
    """OpenVINO moves the scales of the weights behind the Gather, with the axis that a scalar place removes."""
    constants = {
        "w": np.random.default_rng(0).integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (8, 4)).astype(np.int8),
        "scales": np.linspace(0.01, 0.02, 4, dtype=np.float32),
        "zeros": np.zeros(4, np.int8),
        "last": np.array(-1),
    }
    nodes = """
        q = QuantizeLinear (input, scale, zero) x = DequantizeLinear (q, scale, zero)
        weights = DequantizeLinear <axis = 1> (w, scales, zeros) p = MatMul (x, weights) y = Gather <axis = 1> (p, last)
    """
    graph = model_of_text(f"g (float[batch,5,8] input) => (float[] y) {{ {nodes} }}", constants | ROUNDING)
    path = tmp_path / "model.onnx"
    onnx.save(graph, path)
    (session,) = opened(path, build, inference, tmp_path)
    tokens = IMAGES.ravel()[:120].reshape(3, 5, 8)
    wanted = open_as_written(path).run(None, {"input": tokens})[0]
    assert session.run({"input": tokens})["y"] == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize("settings", ["onesided = 0", "onesided = 1"])
def test_a_fourier_transform_is_along_its_axis(settings, build, inference, tmp_path):
    """OpenVINO would take that of the other axis, or refuse what reads a one-sided one."""
    nodes = f"c = DFT <{settings}> (input, , axis) y = Concat <axis = -1> (c, c)"
    path = tmp_path / "model.onnx"
    onnx.save(model_of_text(f"g (float[batch,6,8,1] input) => (float[] y) {{ {nodes} }}", {"axis": np.array(2)}), path)
    (session,) = opened(path, build, inference, tmp_path)
    signals = IMAGES.ravel()[:96].reshape(2, 6, 8, 1)
    wanted = open_as_written(path).run(None, {"input": signals})[0]
    assert session.run({"input": signals})["y"] == pytest.approx(wanted, abs=1e-4)


def test_a_quantized_pixel_that_is_added_to_a_convolution_is_right_in_every_batch(build, inference, tmp_path):
    """It occurs in the last block of a ResNet without biases, on images of 32 pixels. OpenVINO is wrong at batch 1."""
    rng = np.random.default_rng(0)
    constants = {"scale": np.float32(0.02), "zero": np.int8(0), "w_zero": np.zeros(24, np.int8)}
    for name in ("first", "second"):
        constants[f"w_{name}"] = rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (24, 24, 1, 1)).astype(np.int8)
        # With equal scales OpenVINO is right.
        constants[f"w_scale_{name}"] = rng.uniform(0.001, 0.003, 24).astype(np.float32)
    nodes = [helper.make_node("Relu", ["input"], ["positive"])]

    def quantize(source, target):
        nodes.append(helper.make_node("QuantizeLinear", [source, "scale", "zero"], [f"{target}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{target}_q", "scale", "zero"], [target]))

    def convolve(source, target):
        weights = [f"w_{target}", f"w_scale_{target}", "w_zero"]
        nodes.append(helper.make_node("DequantizeLinear", weights, [f"weights_{target}"], axis=0))
        nodes.append(helper.make_node("Conv", [source, f"weights_{target}"], [target]))

    quantize("positive", "residual")
    convolve("residual", "first")
    nodes.append(helper.make_node("Relu", ["first"], ["between"]))
    quantize("between", "quantized")
    convolve("quantized", "second")
    nodes.append(helper.make_node("Add", ["second", "residual"], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "block",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 24, 1, 1])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 24, 1, 1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path / "model.onnx"
    save(graph, path)
    (session,) = opened(path, from_one(build), inference, tmp_path)
    for batch in (1, 16, 2, 1):
        wanted = open_as_written(path).run(None, {"input": IMAGES[:batch]})[0]
        assert session.run({"input": IMAGES[:batch]})["logits"] == pytest.approx(wanted, abs=1e-3), batch


def test_a_convolution_that_is_read_exact_and_quantized_is_right_in_both(build, inference, tmp_path):
    """It occurs between the stages of ConvNeXt. OpenVINO returns zeros where it is quantized."""
    rng = np.random.default_rng(0)
    constants = {
        "scale": np.float32(0.02),
        "zero": np.int8(0),
        "w": rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (24, 24, 1, 1)).astype(np.int8),
        "w_scale": rng.uniform(0.001, 0.003, 24).astype(np.float32),
        "w_zero": np.zeros(24, np.int8),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["input", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], axis=0),
        helper.make_node("Conv", ["x", "weights"], ["conv"]),
        helper.make_node("QuantizeLinear", ["conv", "scale", "zero"], ["conv_q"]),
        helper.make_node("DequantizeLinear", ["conv_q", "scale", "zero"], ["logits"]),
        helper.make_node("Tanh", ["input"], ["residual"]),
        helper.make_node("Add", ["residual", "conv"], ["sum"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 24, 2, 2]) for name in names]
        for names in (["input"], ["logits", "sum"])
    ]
    given = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    path = tmp_path / "model.onnx"
    save(helper.make_graph(nodes, "stages", *ends, given), path)
    (session,) = opened(path, from_one(build), inference, tmp_path)
    images = rng.normal(size=(8, 24, 2, 2)).astype(np.float32)
    for wanted, (name, found) in zip(
        open_as_written(path).run(None, {"input": images}), session.run({"input": images}).items(), strict=True
    ):
        assert np.linalg.norm(found - wanted) < 0.01 * np.linalg.norm(wanted), name


def test_a_wide_product_of_two_activations_is_right(build, inference, tmp_path):
    """A CPU without VNNI adds two of its products in 16 bits: with numbers as large as these, 18 % were wrong."""
    shape = "float[batch,2,64,64]"
    model = model_of_text(f"g ({shape} a, {shape} b) => ({shape} y) {{ [product] y = MatMul (a, b) }}")
    feeds = {name: np.random.default_rng(0).uniform(-1, 1, (8, 2, 64, 64)).astype(np.float32) for name in "ab"}
    kept = nodes_in_floats("int8", model, {}, dialect_of("openvino", "cpu", find_cpu().capability), "fp32")
    onnx.save(write_int8(model, Rounding(dict.fromkeys("ab", Bounds(-1, 1)), frozenset(kept))), tmp_path / "model.onnx")
    (session,) = opened(tmp_path / "model.onnx", from_one(build), inference, tmp_path)
    wanted = open_as_written(model).run(None, feeds)[0]
    assert np.linalg.norm(session.run(feeds)["y"] - wanted) < 0.01 * np.linalg.norm(wanted)


@pytest.mark.parametrize("moves", [["Reshape"], ["Transpose", "Reshape"]])
def test_a_product_with_axes_of_size_one_behind_its_own_compiles(moves, build, inference, tmp_path):
    """It occurs where all images of a SegFormer's attention have one key. OpenVINO refuses it."""
    rng = np.random.default_rng(0)
    constants = {
        "scale": np.float32(0.02),
        "zero": np.int8(0),
        "w": rng.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, (24, 16)).astype(np.int8),
        "w_scale": rng.uniform(0.001, 0.003, 16).astype(np.float32),
        "w_zero": np.zeros(16, np.int8),
        "shape": np.array([-1, 1, 16, 1]),
    }
    settings = {"Transpose": ([], {"perm": [0, 2, 1]}), "Reshape": (["shape"], {})}
    nodes = [
        helper.make_node("QuantizeLinear", ["input", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["x"]),
        helper.make_node("DequantizeLinear", ["w", "w_scale", "w_zero"], ["weights"], axis=1),
        helper.make_node("MatMul", ["x", "weights"], ["keys_0"]),
    ]
    for number, move in enumerate(moves, 1):
        more, attributes = settings[move]
        nodes.append(helper.make_node(move, [f"keys_{number - 1}", *more], [f"keys_{number}"], **attributes))
    nodes.append(helper.make_node("Relu", [f"keys_{len(moves)}"], ["logits"]))
    graph = helper.make_graph(
        nodes,
        "keys",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 1, 24])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1, 16, 1])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    path = tmp_path / "model.onnx"
    save(graph, path)
    (session,) = opened(path, from_one(build), inference, tmp_path)
    tokens = IMAGES[:8].reshape(8, 1, 24)
    wanted = open_as_written(path).run(None, {"input": tokens})[0]
    assert session.run({"input": tokens})["logits"] == pytest.approx(wanted, abs=1e-3)


def test_a_bias_and_an_activation_are_part_of_a_product_of_tokens_in_rows_and_columns(build, inference, tmp_path):
    """OpenVINO makes them steps of their own in a Swin or a ConvNeXt, where tokens have four axes."""
    rng = np.random.default_rng(0)
    shape = "float[batch,4,4,24]"
    products = "[in] a = MatMul (x, w) b = Add (a, bias) c = Gelu (b) [out] d = MatMul (c, v) e = Add (d, bias)"
    constants = {name: rng.normal(size=(24, 24)).astype(np.float32) / 5 for name in "wv"}
    constants["bias"] = rng.normal(size=(1, 1, 1, 24)).astype(np.float32)
    model = model_of_text(f"g ({shape} x) => ({shape} e, {shape} y) {{ {products} y = Tanh (e) }}", constants)
    path, feeds = tmp_path / "model.onnx", {"x": rng.normal(size=(8, 4, 4, 24)).astype(np.float32)}
    onnx.save(write_int8(model, Rounding({"x": Bounds(-4, 4), "c": Bounds(-0.2, 4)}, largest=LARGEST_WEIGHT)), path)
    openvino, blueprint = load_runtime("openvino"), read_blueprint(path, build)
    layers = openvino.compile(path, blueprint, tmp_path).layers
    steps = [layer.name for layer in layers if layer.kind in ("Eltwise", "FakeQuantize")]
    assert sorted(steps) == ["x.rounded", "y"]
    (session,) = openvino.load(tmp_path, blueprint, inference, 1)
    for name, wanted in zip("ey", open_as_written(path).run(None, feeds), strict=True):
        assert np.linalg.norm(session.run(feeds)[name] - wanted) < 0.01 * np.linalg.norm(wanted)


SUMS = "(float[batch,8,4,4] x) => (float[batch,1,4,4] y)"
CHANNELS = "(float[batch,8,4,4] x) => (float[batch,8,4,4] y)"
JOINED = "b = ReduceMean (x, one) a = Concat <axis = 1> (m, b) c = Gather <axis = 1> (a, turned) y = Conv (c, w)"


@pytest.mark.parametrize("extreme", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize(
    ("ends", "then"),
    [
        *((SUMS, "y = Add (m, m)"), (SUMS, "c = Mul (m, half) y = Add (c, c)"), (SUMS, "c = Relu (m) y = Add (c, c)")),
        (CHANNELS, JOINED),
    ],
)
def test_a_rounded_maximum_is_one_of_the_values(extreme, ends, then, build, inference, tmp_path):
    """VOLO's head adds one. OpenVINO alone takes the maximum of the values without their fractions."""
    rng = np.random.default_rng(0)
    constants = {"one": np.array([1]), "half": np.float32(0.5), "turned": np.array([1, 0])}
    constants["w"] = rng.normal(size=(8, 2, 1, 1)).astype(np.float32)
    used = {name: value for name, value in constants.items() if f", {name})" in then or name == "one"}
    model = model_of_text(f"g {ends} {{ m = {extreme} (x, one) {then} }}", used)
    path, feeds = tmp_path / "model.onnx", {"x": rng.normal(size=(8, 8, 4, 4)).astype(np.float32)}
    onnx.save(write_int8(model, Rounding(dict.fromkeys("abcm", Bounds(-4, 4)), largest=LARGEST_WEIGHT)), path)
    (session,) = opened(path, build, inference, tmp_path)
    assert session.run(feeds)["y"] == pytest.approx(open_as_written(path).run(None, feeds)[0], abs=1e-5)


PATCHES = "y = Conv <strides = [8, 8]> (x, w)"
IN_BF16 = "a = Cast <to = 16> (x) b = Cast <to = 16> (w) c = Conv <strides = [8, 8]> (a, b) y = Cast <to = 1> (c)"


@pytest.mark.parametrize(
    ("precision", "channels", "columns", "wanted"),
    [
        *(("int8", 32, 8, 9), ("int8", 64, 8, 8), ("int8", 32, 3, 3), ("int8", 8, 8, 8)),
        *(("bf16", 16, 8, 9), ("bf16", 32, 8, 8), ("fp32", 8, 8, 8)),
    ],
)
def test_kernels_that_fill_rows_of_tiles_get_a_column(precision, channels, columns, wanted, build, inference, tmp_path):
    """With AMX, oneDNN computes many of them wrongly. Everywhere the numbers of the patches stay the same."""
    rng = np.random.default_rng(0)
    ends = f"(float[batch,{channels},16,16] x) => (float[batch,8,h,w] y)"
    weights = {"w": rng.normal(size=(8, channels, columns, columns)).astype(np.float32) / 50}
    plain = model_of_text(f"g {ends} {{ {PATCHES} }}", weights)
    model = {
        "int8": lambda: write_int8(plain, Rounding({"x": Bounds(-4, 4)}, largest=LARGEST_WEIGHT)),
        "bf16": lambda: model_of_text(f"g {ends} {{ {IN_BF16} }}", weights, opset=22),
        "fp32": lambda: plain,
    }[precision]()
    path, feeds = tmp_path / "model.onnx", {"x": rng.normal(size=(8, channels, 16, 16)).astype(np.float32)}
    onnx.save(model, path)
    (convolution,) = (node for node in read_graph(path).get_ops() if node.get_type_name() == "Convolution")
    assert list(convolution.input_value(1).get_shape())[-1] == wanted
    (session,) = opened(path, build, inference, tmp_path)
    exact = open_as_written(plain).run(None, feeds)[0]
    assert np.linalg.norm(session.run(feeds)["y"] - exact) < 0.03 * np.linalg.norm(exact)


@pytest.mark.parametrize(
    ("weights", "constants"),
    [
        ("w = DequantizeLinear <axis = 0> (q, each)", {"each": np.full(8, 0.01, np.float32)}),
        ("w = DequantizeLinear <axis = 3> (q, each)", {"each": np.linspace(0.01, 0.02, 8, dtype=np.float32)}),
        ("n = DequantizeLinear <axis = 0> (q, each) w = Mul (n, n)", {"each": np.full(8, 0.1, np.float32)}),
    ],
    ids=["its own", "a scale for each column", "read by others"],
)
def test_a_wider_kernel_gives_the_same_whatever_makes_it(weights, constants, build, inference, tmp_path):
    nodes = f"r = QuantizeLinear (x, scale, zero) a = DequantizeLinear (r, scale, zero) {weights}"
    text = f"g (float[batch,32,16,16] x) => (float[batch,8,h,w] y) {{ {nodes} y = Conv <strides = [8, 8]> (a, w) }}"
    bytes_of = np.random.default_rng(0).integers(-60, 60, (8, 32, 8, 8)).astype(np.int8)
    path, feeds = tmp_path / "model.onnx", {"x": IMAGES[:8, :1].repeat(32, 1).repeat(16, 2).repeat(16, 3)}
    onnx.save(model_of_text(text, ROUNDING | constants | {"q": bytes_of}), path)
    (session,) = opened(path, build, inference, tmp_path)
    wanted = open_as_written(path).run(None, feeds)[0]
    assert np.linalg.norm(session.run(feeds)["y"] - wanted) < 0.01 * np.linalg.norm(wanted)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_channels_in_another_order_stay_so_before_a_convolution(precision, build, inference, tmp_path):
    """OpenVINO alone moves the order into the weights, the wrong way around."""
    rng = np.random.default_rng(0)
    constants = {"order": np.roll(np.arange(16), 1), "w": rng.normal(size=(8, 16, 1, 1)).astype(np.float32)}
    text = "g (float[batch,16,4,4] x) => (float[batch,8,4,4] y) { c = Gather <axis = 1> (x, order) y = Conv (c, w) }"
    plain = rewritten(model_of_text(text, constants), dialect_of("openvino", "cpu", "avx512_vnni"), precision)
    rounding = Rounding({"x": Bounds(-4, 4), "c": Bounds(-4, 4)}, largest=LARGEST_WEIGHT)
    path, feeds = tmp_path / "model.onnx", {"x": rng.normal(size=(8, 16, 4, 4)).astype(np.float32)}
    onnx.save(write_int8(plain, rounding) if precision == "int8" else plain, path)
    (session,) = opened(path, build, inference, tmp_path)
    wanted = open_as_written(path).run(None, feeds)[0]
    assert np.linalg.norm(session.run(feeds)["y"] - wanted) < 0.01 * np.linalg.norm(wanted)


def test_a_normalization_in_bf16_reads_and_writes_it(build, inference, tmp_path):
    rng = np.random.default_rng(0)
    weights = {"w": np.ones(32, np.float32), "b": rng.normal(size=32).astype(np.float32)}
    casts = "a = Cast <to = 16> (x) v = Cast <to = 16> (w) c = Cast <to = 16> (b)"
    nodes = f"{casts} n = LayerNormalization <axis = -1> (a, v, c) y = Cast <to = 1> (n)"
    plain = model_of_text("g (float[n,32] x) => (float[n,32] y) { y = LayerNormalization (x, w, b) }", weights)
    path, feeds = tmp_path / "model.onnx", {"x": rng.normal(3, 1, (8, 32)).astype(np.float32)}
    onnx.save(model_of_text(f"g (float[n,32] x) => (float[n,32] y) {{ {nodes} }}", weights, opset=22), path)
    (norm,) = (node for node in read_graph(path).get_ops() if node.get_type_name() == "MVN")
    assert norm.get_element_type().get_type_name() == "bf16"
    (session,) = opened(path, build, inference, tmp_path)
    exact = open_as_written(plain).run(None, feeds)[0]
    assert np.linalg.norm(session.run(feeds)["y"] - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_an_attention_in_bf16_without_a_factor_is_products(factor, build, inference, tmp_path):
    """OpenVINO itself multiplies transposed keys by the factor of one."""
    rng = np.random.default_rng(0)
    constants = {"heads": np.array([0, 9, 4, 16]), "m": rng.normal(size=(4, 9, 9)), "f": np.float32(factor)}
    heads = "{0} = Cast <to = 16> (in{0}) {0}1 = Reshape ({0}, heads) {0}2 = Transpose <perm = [0, 2, 1, 3]> ({0}1)"
    scores = "t = Transpose <perm = [0, 1, 3, 2]> (k2) p = MatMul (q2, t)"
    nodes = f"{' '.join(map(heads.format, 'qkv'))} {scores} bf = Cast <to = 16> (f) bm = Cast <to = 16> (m)"
    nodes += f"{'s = Mul (p, bf) a = Add (s, bm)' if factor != 1 else 'a = Add (p, bm)'} o = Softmax <axis = -1> (a)"
    inputs = ", ".join(f"float[batch,9,64] in{name}" for name in "qkv")
    text = f"g ({inputs}) => (float[batch,4,9,16] y) {{ {nodes} r = MatMul (o, v2) y = Cast <to = 1> (r) }}"
    path, feeds = tmp_path / "model.onnx", {f"in{n}": rng.normal(size=(2, 9, 64)).astype(np.float32) for n in "qkv"}
    onnx.save(model_of_text(text, constants, opset=22), path)
    kinds = {node.get_type_name() for node in read_graph(path).get_ops()}
    assert ("ScaledDotProductAttention" in kinds) == (factor != 1)
    (session,) = opened(path, build, inference, tmp_path)
    queries, keys, values = (each.reshape(2, 9, 4, 16).swapaxes(1, 2) for each in feeds.values())
    shares = np.exp(factor * queries @ keys.swapaxes(2, 3) + constants["m"])
    exact = shares / shares.sum(-1, keepdims=True) @ values
    assert np.linalg.norm(session.run(feeds)["y"] - exact) < 0.01 * np.linalg.norm(exact)


@pytest.mark.parametrize("varies", [True, False])
def test_a_residual_sum_has_no_kernel_of_its_own(varies, build, tmp_path):
    """OpenVINO adds within the kernel of a Conv: what that made must be exact where a size varies, else rounded."""
    rng = np.random.default_rng(0)
    constants = {name: rng.normal(size=(32, 32, 3, 3)).astype(np.float32) for name in "vw"}
    nodes = "c = Conv <pads = [1, 1, 1, 1]> (x, v) r = Relu (c) d = Conv <pads = [1, 1, 1, 1]> (r, w)"
    nodes += " s = Add (d, x) a = Relu (s) y = Conv <pads = [1, 1, 1, 1]> (a, v)"
    model = model_of_text(f"g (float[batch,32,16,16] x) => (float[batch,32,16,16] y) {{ {nodes} }}", constants)
    exact_sums = dialect_of("openvino", "cpu", find_cpu().capability, varies).exact_sums
    rounding = Rounding(dict.fromkeys("xrda", Bounds(-4, 4)), largest=LARGEST_WEIGHT, exact_sums=exact_sums)
    onnx.save(write_int8(model, rounding), tmp_path / "model.onnx")
    batch = Range(min=1, opt=4, max=8) if varies else Range(min=4, opt=4, max=4)
    profile = build.model_copy(update={"profile": Profile(batch=batch)})
    blueprint = read_blueprint(tmp_path / "model.onnx", profile)
    layers = load_runtime("openvino").compile(tmp_path / "model.onnx", blueprint, tmp_path).layers
    assert {layer.kind for layer in layers if layer.precision == "int8"} - {"Reorder"} == {"Convolution"}
