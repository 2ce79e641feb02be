"""int4, nvfp4 and mxfp8: the numbers in blocks, and graphs that compute nearly the same, with NVIDIA's operators or
spelled out."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from support.pass_checks import model_of_text

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PRECISIONS
from enginewright.core.params.build import InferenceParams, Profile, Range
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.as_written import has_blocks, open_as_written, run_as_written, run_graph, spelled_out
from enginewright.graph.onnx_file import count_nodes, save_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.precision.blocks import in_integers, in_mxfp8, in_nvfp4, write_blocks

WIDTH = 64
RANGES = dict.fromkeys(("p", "q", "r"), 5.0)
PRODUCTS = {  # of x, with weights in columns and in rows
    "matrices": ("float[batch,64] x", "[p] y = MatMul (x, w)"),
    "stacks of matrices": ("float[batch,9,64] x", "[p] y = MatMul (x, w)"),
    "images, channels last": ("float[batch,3,5,64] x", "[p] y = MatMul (x, w)"),
    "rows": ("float[batch,64] x", "[p] y = Gemm <transA = 0, transB = 1> (x, w, b)"),
    "columns": ("float[batch,64] x", "[p] y = Gemm (x, w, b)"),
}


def graph_of(kind, dtype=np.float32):
    given, nodes = PRODUCTS[kind]
    rng = np.random.default_rng(3)
    constants = {"w": rng.normal(0, 0.1, (WIDTH, WIDTH)).astype(dtype), "b": rng.normal(0, 0.1, WIDTH).astype(dtype)}
    result = given.replace(" x", " y")
    if dtype == np.float16:
        nodes = f"h = Cast <to = 10> (x) {nodes.replace('(x', '(h').replace('y =', 'k =')} y = Cast <to = 1> (k)"
    return model_of_text(f"g ({given}) => ({result}) {{ {nodes} }}", constants)


def inputs(kind):
    shape = [4 if size == "batch" else int(size) for size in PRODUCTS[kind][0].split("[")[1].split("]")[0].split(",")]
    return {"x": np.random.default_rng(4).normal(0, 1, shape).astype(np.float32)}


def result_of(model, feeds):
    return run_graph(open_as_written(spelled_out(model) if has_blocks(model) else model), feeds)["y"]


def distance(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


# The numbers


@pytest.fixture
def rows():
    rows = np.random.default_rng(5).normal(0, 0.1, (48, 128)).astype(np.float32)
    rows[3, :64], rows[4, 5] = 0, 2.5
    return rows


def test_scales_of_nvfp4_and_mxfp8_are_those_of_modelopt(rows):
    from modelopt.onnx.quantization import quant_utils as modelopt

    given = np.where(rows == 0, 1e-3, rows)  # ModelOpt gives a block of zeros a scale of its own
    found, whole = in_nvfp4(given, 16), modelopt.get_weights_scaling_factor_2(given)
    scales = modelopt.get_weights_scaling_factor(given, 16, whole)
    assert found.of_scales == whole
    assert np.array_equal(found.scales, scales.astype(ml_dtypes.float8_e4m3fn))
    amax = modelopt.get_amax(given, 1, 32)
    assert np.array_equal(in_mxfp8(given, 32).scales, modelopt.compute_e8m0(amax, given.shape, 1, 32).astype(np.uint8))


def test_int4_is_closer_than_modelopts_rounding_to_nearest(rows):
    from modelopt.onnx.quantization.quant_utils import dq_tensor, quant_tensor

    numbers, scales, _ = quant_tensor(rows, 64, quantize_axis=1)
    theirs = distance(dq_tensor(numbers, scales, 64, quantize_axis=1), rows)
    found = in_integers(rows, 64, np.dtype(np.float16), "int4")
    ours = distance(found.numbers.astype(np.float32) * np.repeat(found.scales.astype(np.float32), 64, 1), rows)
    assert ours < 0.95 * theirs


@pytest.mark.parametrize(
    "write",
    [
        lambda rows: in_integers(rows, 64, np.dtype(np.float32), "int4"),
        lambda rows: in_nvfp4(rows, 16),
        lambda rows: in_mxfp8(rows, 32),
    ],
)
def test_a_block_of_zeros_stays_zero(rows, write):
    assert not write(rows).numbers[3, :64].astype(np.float32).any()


# The graphs


@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["fp32", "fp16"])
@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize(("precision", "limit"), [("w8", 0.01), ("int4", 0.12), ("mxfp8", 0.05), ("nvfp4", 0.16)])
def test_the_graph_computes_nearly_the_same(precision, limit, kind, dtype, tmp_path):
    exact = graph_of(kind, dtype)
    written = write_blocks(exact, precision, RANGES)
    assert (written.in_blocks, written.stay) == (["p"], {})
    save_graph(written.model, tmp_path / "model.onnx")  # the checker of ONNX takes it
    found = run_as_written(tmp_path / "model.onnx")(inputs(kind))["y"]
    assert 0.001 < distance(found, result_of(exact, inputs(kind))) < limit


def test_w8_looks_up_bytes():
    table = np.random.default_rng(6).normal(0, 1, (500, 32)).astype(np.float32)
    table *= np.arange(1, 501)[:, None]
    nodes = "[table] e = Gather (t, x) [sum] y = Add (e, e) [turned] z = Gather <axis = 1> (u, x)"
    text = f"g (int64[batch,3] x) => (float[batch,3,32] y, float[500,batch,3] z) {{ {nodes} }}"
    model, places = model_of_text(text, {"t": table, "u": table}), np.array([[0, 7, 499], [1, 2, 31]])
    written = write_blocks(model, "w8", {})
    assert (written.in_blocks, written.stay) == (["table"], {})
    onnx.checker.check_model(written.model, full_check=True)
    found, exact = (run_graph(open_as_written(each), {"x": places % 32})["y"] for each in (written.model, model))
    steps = np.abs(table[places % 32]).max(-1, keepdims=True) / 127
    assert 0.2 < (np.abs(found - exact) / 2 / steps).max() <= 1  # each row has a scale of its own
    assert write_blocks(model, "int4", {}).in_blocks == []


def rounded_mxfp8(values):
    blocks = values.reshape(-1, 32)
    scales = np.exp2(np.ceil(np.log2(np.abs(blocks).max(1, keepdims=True) / 448)))
    return ((blocks / scales).astype(ml_dtypes.float8_e4m3fn).astype(np.float32) * scales).reshape(values.shape)


def rounded_nvfp4(values):
    whole, blocks = np.float32(RANGES["p"] / (6 * 448)), values.reshape(-1, 16)
    scales = np.minimum(np.abs(blocks).max(1, keepdims=True) / (6 * whole), 448)
    scales = scales.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    numbers = np.clip(blocks / (scales * whole), -6, 6).astype(ml_dtypes.float4_e2m1fn).astype(np.float32)
    return (numbers * scales * whole).reshape(values.shape)


@pytest.mark.parametrize(("precision", "rounded"), [("mxfp8", rounded_mxfp8), ("nvfp4", rounded_nvfp4)])
def test_spelled_out_activations_are_rounded_as_the_formats_say(precision, rounded):
    model = graph_of("stacks of matrices")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w"))
    feeds = inputs("stacks of matrices")
    feeds["x"][0, 0, :20] *= 9  # beyond the calibrated range
    found = result_of(write_blocks(model, precision, RANGES).model, feeds)
    assert np.allclose(found, rounded(feeds["x"]), rtol=1e-6, atol=0)


def test_what_several_products_read_is_rounded_once():
    nodes = "[p] a = MatMul (x, w) [q] b = MatMul (x, v) [r] c = MatMul (a, w) d = Add (b, c)"
    weights = {name: np.ones((WIDTH, WIDTH), np.float32) for name in "wv"}
    model = model_of_text(f"g (float[batch,64] x) => (float[batch,64] d) {{ {nodes} }}", weights)
    written = write_blocks(model, "mxfp8", {})
    counted = count_nodes(written.model)
    assert counted["TRT_MXFP8DynamicQuantize"] == 2  # of x and a
    assert counted["TRT_MXFP8DequantizeLinear"] == 4  # w is read twice
    assert not {"w", "v"} & {tensor.name for tensor in written.model.graph.initializer}


@pytest.mark.parametrize(
    ("precision", "given", "shape", "kept", "stay"),
    [
        ("int4", "batch,96", (96, 64), [], "it sums 96 numbers, which is no multiple of 64"),
        ("nvfp4", "batch,64", (64, 10), [], "it makes fewer than 16 columns"),
        ("int4", "batch,64", (64, 64), ["p"], None),
    ],
)
def test_a_product_that_does_not_fit_stays_and_is_named(precision, given, shape, kept, stay):
    result = ",".join([*given.split(",")[:-1], str(shape[1])])
    graph = f"g (float[{given}] x) => (float[{result}] y) {{ [p] y = MatMul (x, w) }}"
    written = write_blocks(model_of_text(graph, {"w": np.ones(shape, np.float32)}), precision, RANGES, kept)
    assert (written.in_blocks, written.stay) == ([], {"p": stay} if stay else {})
    assert count_nodes(written.model) == {"MatMul": 1}


def test_a_range_that_is_missing_is_named():
    with pytest.raises(EnginewrightError, match=r"no range for x, which p reads: set calibration\.file: null"):
        write_blocks(graph_of("matrices"), "nvfp4", {})


# The compilers of a CPU


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("precision", [name for name, facts in PRECISIONS.items() if facts.block])
def test_a_cpu_executes_integers_and_the_others_in_float32(build, tmp_path, runtime, precision):
    path, feeds = tmp_path / "model.onnx", inputs("stacks of matrices")
    feeds["x"][0, 0, :20] *= 9
    save_graph(write_blocks(graph_of("stacks of matrices"), precision, RANGES).model, path)
    sizes = build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=2, max=4)), "profiles": ()})
    blueprint, there = read_blueprint(path, sizes), load_runtime(runtime)
    layers = there.compile(path, blueprint, tmp_path).layers
    executed = {"w8": "int8", "int4": "int4"}.get(precision, "fp32")
    assert {layer.precision for layer in layers if layer.computes} == {executed}
    (session,) = there.load(tmp_path, blueprint, InferenceParams(threads=1, cuda_graph=False), 1)
    assert distance(session.run(feeds)["y"], run_as_written(path)(feeds)["y"]) < 0.03
    session.close()
