"""The stage convert: the calibration must belong to the graph, and cover it."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.pass_checks import model_of_text
from support.paths import ROOT
from support.quantized import KEEP_NOTHING, quantized_inputs

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.params.precisions import CalibrationParams
from enginewright.graph.as_written import run_as_written
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import count_nodes, load_graph
from enginewright.pipeline.graphs import ConvertPaths, convert
from enginewright.precision.calibration.cache import provided_provenance, write_cache
from enginewright.precision.cure import Cures
from enginewright.precision.dialect import dialect_of
from enginewright.precision.floats import OVERFLOWS
from enginewright.precision.in_dialect import (
    NO_KERNEL,
    Ingredients,
    cast_in_dialect,
    quantize_in_dialect,
    rewritten,
    write_blocks_in_dialect,
)
from enginewright.precision.records import SEARCH, Search

PARAMS = CalibrationParams(method="max", percentile=100, bins=2048, batch=8, file="data/given.cache")
CPU = dialect_of("openvino", "cpu", "avx512_vnni")
TENSORRT = dialect_of("tensorrt", "cuda", "9.0")


def calibration(amax, folder):
    write_cache(amax, folder / "calibration.cache")
    return provided_provenance(PARAMS, folder / "calibration.cache", amax)


@pytest.mark.parametrize("dialect", [CPU, TENSORRT], ids=["cpu", "tensorrt"])
def test_a_cache_that_lacks_a_tensor_is_refused(tiny_onnx, samples, tmp_path, dialect):
    some = calibration({"input": 2.5, "relu": 7.3, "relu_2": 4.0, "features": 1.0}, tmp_path)
    with pytest.raises(EnginewrightError, match=r"no range for \d of the \d tensors that are quantized: .*pooled"):
        quantize_in_dialect("int8", Ingredients(tiny_onnx, some, {}, dialect, KEEP_NOTHING))


@pytest.mark.parametrize("dialect", [CPU, TENSORRT], ids=["cpu", "tensorrt"])
def test_a_graph_of_which_eight_bits_can_hold_nothing_is_refused(tiny_onnx, samples, tmp_path, dialect):
    names = [name for node in load_graph(tiny_onnx).graph.node for name in node.output]
    ranges = calibration(dict.fromkeys(["input", *names], 1e6), tmp_path)
    why = (
        r"^int8 can hold nothing of this graph \(.* and others: its numbers reach beyond .*\): delete precisions.int8$"
    )
    with pytest.raises(EnginewrightError, match=why):
        quantize_in_dialect("int8", Ingredients(tiny_onnx, ranges, samples.cycled(1), dialect, KEEP_NOTHING))


@pytest.fixture
def converted(samples, tmp_path, monkeypatch):
    """Return a function that runs the stage on a graph, and returns the folder that it makes."""
    monkeypatch.chdir(tmp_path)

    def made(model, precision, dialect=CPU):
        Path("simplified").mkdir()
        onnx.save(model, "simplified/model.onnx")
        dialect.write(Path("dialect.json"))
        shutil.copyfile(ROOT / "params.yaml", "params.yaml")
        BoxesInGraph().write(Path("boxes.json"))
        Cures(by_precision={}).write(Path("cures.json"))
        others = map(Path, ("dialect.json", "boxes.json", "cures.json", precision))
        graphs = Path("simplified"), Path("simplified"), Path("calibrated"), Path("none")
        convert(Params.read(), precision, ConvertPaths(*graphs, samples.folder, *others))
        return Path(precision)

    return made


@pytest.mark.parametrize(("dialect", "spelled"), [(CPU, False), (TENSORRT, True)], ids=["cpu", "tensorrt"])
def test_only_tensorrt_has_its_hard_swish_spelled_out(converted, dialect, spelled):
    weights = {"w": np.ones((4, 3, 1, 1), np.float32)}
    nodes = "c = Conv (input, w) y = HardSwish (c)"
    model = model_of_text(f"g (float[batch,3,8,8] input) => (float[batch,4,8,8] y) {{ {nodes} }}", weights)
    made = load_graph(converted(model, "bf16", dialect) / "model.onnx")
    assert ("HardSigmoid" in count_nodes(made)) == spelled


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("lost", [True, False], ids=["what 16 bits lose", "what they hold"])
def test_the_fewest_nodes_that_16_bits_cannot_hold_stay_in_float32(precision, lost, converted, samples):
    random, shape = np.random.default_rng(0), (16, 16, 1, 1)
    constants = {name: random.normal(0, 0.25, shape).astype(np.float32) for name in "uvw"}
    constants |= {"first": constants["u"][:, :3], "large": np.float32(2000 if lost else 0)}
    nodes = """[a] a = Conv (input, first) [b] b = Conv (a, u) [lift] l = Add (b, large) [drop] d = Sub (l, large)
        [c] c = Conv (d, v) [d] r = Relu (c) [e] e = Conv (r, w) [f] y = Flatten (e)"""
    model = model_of_text(f"g (float[batch,3,8,8] input) => (float[batch,1024] y) {{ {nodes} }}", constants)
    search, limit = converted(model, precision) / SEARCH, Params.read().precisions[precision].thresholds.relative_error
    assert search.exists() == lost
    if lost:
        assert {"lift", "drop"} <= {*Search.read(search).spared} <= {"b", "lift", "drop", "c"}
    made, feeds = run_as_written(search.with_name("model.onnx")), samples.fed_to(Params.read().build).cycled(8)
    exact = run_as_written(Path("simplified/model.onnx"))(samples.cycled(8))["y"]
    assert 0 < np.linalg.norm(made(feeds)["y"] - exact) / np.linalg.norm(exact) < limit


@pytest.mark.parametrize(("dialect", "read"), [(CPU, True), (TENSORRT, False)], ids=["cpu", "tensorrt"])
def test_only_tensorrt_has_its_col2im_spelled_out(dialect, read):
    sizes = {"image": np.array([4, 4]), "block": np.array([2, 2])}
    nodes = "y = Col2Im <strides = [2, 2]> (input, image, block)"
    model = model_of_text(f"g (float[batch,8,4] input) => (float[batch,2,4,4] y) {{ {nodes} }}", sizes)
    for precision in ("fp32", "int8"):
        after = rewritten(model, dialect, precision)
        assert (after is None) == read  # a large graph is not written anew for nothing
        assert ("Col2Im" in count_nodes(after or model)) == read


@pytest.mark.parametrize(
    ("dialect", "precision", "stays"),
    [(TENSORRT, "bf16", {"up": NO_KERNEL}), (TENSORRT, "fp16", {}), (CPU, "bf16", {})],
    ids=["tensorrt bf16", "tensorrt fp16", "cpu bf16"],
)
def test_transposed_convolutions_stay_in_float32_where_bf16_has_no_kernel_for_them(tmp_path, dialect, precision, stays):
    weights = {"w": np.ones((8, 3, 1, 1), np.float32), "v": np.ones((8, 8, 2, 2), np.float32)}
    nodes = "c = Conv (input, w) [up] y = ConvTranspose (c, v)"
    onnx.save(model_of_text(f"g (float[batch,3,8,8] input) => (float[] y) {{ {nodes} }}", weights), tmp_path / "m.onnx")
    made, high = cast_in_dialect(precision, tmp_path / "m.onnx", {}, dialect, KEEP_NOTHING)
    (kernel,) = (tensor for tensor in made.graph.initializer if list(tensor.dims) == [8, 8, 2, 2])
    assert (high, kernel.data_type == TensorProto.FLOAT) == (stays, bool(stays))


def test_a_graph_that_accepts_only_some_sizes_is_quantized_at_that_of_the_samples(samples, tmp_path):
    """A U-Net's halves join only at a size that its steps divide: here 8, and not 224."""
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
    graph, _ = quantize_in_dialect(
        "int8", Ingredients(path, calibration(ranges, tmp_path), samples.cycled(1), TENSORRT, KEEP_NOTHING)
    )
    assert "conv" in quantized_inputs(graph)


@pytest.mark.parametrize(("instructions", "in_bytes"), [("avx512_vnni", True), ("avx2", False)])
def test_products_of_two_activations_stay_in_floats_where_their_sums_overflow(instructions, in_bytes, tmp_path):
    nodes = "k = Gelu (x) [weighted] q = MatMul (x, w) t = Transpose <perm = [0, 2, 1]> (k) [pair] y = MatMul (q, t)"
    model = model_of_text(
        f"g (float[1,32,64] x) => (float[1,32,32] y) {{ {nodes} }}", {"w": np.ones((64, 64), np.float32)}
    )
    onnx.save(model, tmp_path / "model.onnx")
    ranges, dialect = calibration(dict.fromkeys("xkqty", 4.0), tmp_path), dialect_of("openvino", "cpu", instructions)
    made, high = quantize_in_dialect("int8", Ingredients(tmp_path / "model.onnx", ranges, {}, dialect, KEEP_NOTHING))
    assert ("q" in {node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"}) == in_bytes
    assert high == ({} if in_bytes else {"pair": OVERFLOWS})


@pytest.mark.parametrize(("runtime", "varies"), [("openvino", True), ("openvino", False), ("onnxruntime", True)])
def test_what_a_conv_makes_for_a_sum_is_exact_where_the_compiler_adds_before_it_rounds(runtime, varies, tmp_path):
    text = "g (float[n,4,8,8] x) => (float[n,4,8,8] y) { c = Conv (x, w) s = Add (c, x) y = Relu (s) }"
    path, dialect = tmp_path / "model.onnx", dialect_of(runtime, "cpu", "avx512_vnni", varies)
    onnx.save(model_of_text(text, {"w": np.ones((4, 4, 1, 1), np.float32)}), path)
    given = Ingredients(path, calibration(dict.fromkeys("xcsy", 4.0), tmp_path), {}, dialect, KEEP_NOTHING)
    made, _ = quantize_in_dialect("int8", given)
    read = {node.input[0] for node in made.graph.node if node.op_type == "QuantizeLinear"}
    assert read == {"x"} | (set() if (runtime, varies) == ("openvino", True) else {"c"})


def test_products_are_written_in_blocks_and_the_rest_in_the_compilers_type(tmp_path):
    nodes = "[up] u = MatMul (x, w) h = Gelu (u) [down] d = MatMul (h, v) [head] y = MatMul (d, z)"
    weights = {"w": (64, 64), "v": (64, 64), "z": (64, 4)}
    random = np.random.default_rng(0)
    constants = {name: random.normal(0, 0.1, shape).astype(np.float32) for name, shape in weights.items()}
    model = model_of_text(f"g (float[batch,64] x) => (float[batch,4] y) {{ {nodes} }}", constants)
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    ranges = calibration(dict.fromkeys("xuhd", 4.0), tmp_path)
    few = {"head": "it makes fewer than 16 columns"}
    for dialect, halves in ((CPU, False), (TENSORRT, True)):
        for precision in ("w8", "int4", "mxfp8", "nvfp4"):
            keep = KEEP_NOTHING.model_copy(update={"rest": "auto"})
            written = write_blocks_in_dialect(precision, path, ranges, {}, dialect, keep)
            assert (written.in_blocks, written.stay) == (["up", "down"], few)
            types = {tensor.data_type for tensor in written.model.graph.initializer}
            assert (TensorProto.FLOAT16 in types) == halves


def test_a_graph_without_a_product_that_fits_says_why(tiny_onnx):
    with pytest.raises(EnginewrightError, match=r"fits \(classifier: it sums 32 numbers, .* delete precisions.int4"):
        write_blocks_in_dialect("int4", tiny_onnx, None, {}, CPU, KEEP_NOTHING)
