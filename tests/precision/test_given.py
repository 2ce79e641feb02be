"""A model that is quantized already: its floats, and int8 with its own scales."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from support.builds import building_here
from support.checkout import Project
from support.pass_checks import apply_pass, model_of_text
from support.paths import ROOT
from support.quantized import quantize_with_onnxruntime
from support.small_project import TINY, lay_over, run_pipeline, search_nothing, small_project
from support.tensors import noise

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import count_nodes, load_graph
from enginewright.graph.passes import changed_by, rewrite_graph
from enginewright.graph.read_interface import read_blueprint
from enginewright.graph.simplify import simplify_graph
from enginewright.measure.agreement import relative_error
from enginewright.pipeline.graphs import ConvertPaths, convert
from enginewright.pipeline.ranges import simplify
from enginewright.precision.cure import Cures
from enginewright.precision.dialect import dialect_of
from enginewright.precision.given import (
    as_compiler_takes,
    dequantize_biases,
    sign_bytes,
    take_out_rounding,
    types_of_rounding,
    unfused,
)

Q, DQ = "QuantizeLinear", "DequantizeLinear"


@pytest.fixture(params=["QUInt8", "QInt8"], ids=["uint8", "int8"])
def project(request, tiny_onnx, samples, tmp_path, monkeypatch):
    """A folder with the tiny graph as ONNX Runtime quantizes it. In uint8, that leaves out each Relu."""
    project = Project(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    project.set(**{"precisions.int8.from": "given", "build.pixels": None})
    project.set(search={})
    monkeypatch.chdir(tmp_path)
    Path("exported").mkdir()
    quantize_with_onnxruntime(tiny_onnx, "exported/model.onnx", samples.cycled(8), request.param)
    simplify(Params.read(), Path("exported"), samples.folder, Path("simplified"), Path("given"))
    return project


def outputs(path, samples):
    return run_graph(open_as_written(path), samples.cycled(8))["logits"]


def test_its_floats_are_those_that_were_quantized(project, tiny_onnx, samples):
    floats, exact = load_graph(Path("simplified/model.onnx")), load_graph(Path("given/model.onnx"))
    assert not {Q, DQ} & count_nodes(floats).keys()
    assert {Q, DQ} <= count_nodes(exact).keys()
    known, got = outputs(tiny_onnx, samples), outputs(Path("simplified/model.onnx"), samples)
    assert relative_error(np.abs(known - got), known) < 0.02  # weights of a byte, and without its Relu 1.3
    assert (outputs(Path("given/model.onnx"), samples) == outputs(Path("exported/model.onnx"), samples)).all()


def test_int8_is_the_given_graph(project, samples):
    dialect_of("openvino", "cpu", "avx512_vnni").write(Path("dialect.json"))
    BoxesInGraph().write(Path("boxes.json"))
    Cures(by_precision={}).write(Path("cures.json"))
    others = Path("dialect.json"), Path("boxes.json"), Path("cures.json"), Path("int8")
    graphs = Path("simplified"), Path("given"), Path("calibrated"), Path("none")
    convert(Params.read(), "int8", ConvertPaths(*graphs, samples.folder, *others))
    assert (outputs(Path("int8/model.onnx"), samples) == outputs(Path("given/model.onnx"), samples)).all()
    Path("given/model.onnx").unlink()
    sentence = "^precisions.int8.from: the model has no Q/DQ nodes of INT8; set it to searched or calibrated$"
    with pytest.raises(EnginewrightError, match=sentence):
        convert(Params.read(), "int8", ConvertPaths(*graphs, samples.folder, *others))


GIVEN = """
runtime: openvino
task: embedding
samples: {preprocessing: {resize: 8, crop: 8}}
model: {source: data/models/tiny.onnx}
weights: {source: given, training: {size: 8}}
benchmark: {baselines: [onnxruntime]}
precisions: {int8: {from: FROM, rescue: none}}
"""


@pytest.mark.parametrize("source", ["given", "calibrated"])
def test_the_pipeline_makes_int8_of_it_or_anew(tmp_path, monkeypatch, tiny_onnx, capsys, source):
    small_project(tmp_path, monkeypatch, "int8")
    Path("data/models").mkdir(exist_ok=True)
    plain = np.ones((9, 3, 8, 8), np.float32) * np.linspace(-1, 1, 9, dtype=np.float32).reshape(9, 1, 1, 1)
    quantize_with_onnxruntime(
        tiny_onnx,
        "data/models/tiny.onnx",
        {"input": plain * np.random.default_rng(0).choice([1, 0.5], plain.shape).astype(np.float32)},
    )
    search_nothing()
    lay_over(GIVEN.replace("FROM", source), TINY)
    run_pipeline(monkeypatch)
    assert "MIND: the model is quantized already" in capsys.readouterr().out


def test_weights_in_blocks_of_four_bits_are_floats_again():
    nodes = "f = DequantizeLinear <axis = 0, block_size = 2> (w, s) y = MatMul (input, f)"
    constants = {"w": np.int8([[1], [2], [3], [-4]]), "s": np.float32([[0.5], [2]])}
    model = model_of_text(f"g (float[batch,4] input) => (float[batch,1] y) {{ {nodes} }}", constants, opset=21)
    stored = next(tensor for tensor in model.graph.initializer if tensor.name == "w")
    stored.CopyFrom(onnx.helper.make_tensor("w", TensorProto.INT4, [4, 1], [1, 2, 3, -4]))
    floats = changed_by(model, take_out_rounding)
    (found,) = (numpy_helper.to_array(tensor) for tensor in floats.graph.initializer)
    assert found.ravel().tolist() == [0.5, 1, 6, -8]


def test_floats_reach_as_far_as_two_bytes_do():
    nodes = "f = MatMul (input, w) q = QuantizeLinear (f, s, z) y = DequantizeLinear (q, s, z)"
    constants = {"w": np.float32([[1]]), "s": np.float32(0.001), "z": np.uint16(0)}
    model = model_of_text(f"g (float[batch,1] input) => (float[batch,1] y) {{ {nodes} }}", constants, opset=21)
    floats = changed_by(model, take_out_rounding)
    found = run_graph(open_as_written(floats), {"input": np.float32([[-1], [0.1], [5], [60]])})["y"]
    assert found.ravel().tolist() == pytest.approx([0, 0.1, 5, 60])


def test_bytes_that_an_operator_reads_are_refused():
    nodes = "q = QuantizeLinear (input, s) r = Reshape (q, flat) y = DequantizeLinear (r, s)"
    constants = {"s": np.float32(0.5), "flat": np.array([-1])}
    model = model_of_text(f"g (float[2,4] input) => (float[8] y) {{ {nodes} }}", constants)
    with pytest.raises(EnginewrightError, match=r"^y dequantizes what Reshape makes, and only pairs .* write QDQ$"):
        changed_by(model, take_out_rounding)


# Two convolutions in bytes, with an operator between them that is rounded before, behind, or both.
GRAPH = """
qx = QuantizeLinear (input, s, z) x = DequantizeLinear (qx, s, z)
w1 = DequantizeLinear <axis = 0> (b1, ws, wz) w2 = DequantizeLinear <axis = 0> (b2, ws, wz)
c = Conv (x, w1) BEFORE OPERATOR BEHIND y = Conv (r, w2)
"""
OPERATORS = {
    "Relu": "o = Relu (i)",
    "MaxPool": "o = MaxPool <kernel_shape = [2, 2]> (i)",
    "Transpose": "o = Transpose <perm = [0, 1, 3, 2]> (i)",
    "Concat": "o = Concat <axis = 2> (i, i)",
    "Sigmoid": "o = Sigmoid (i)",
    "SiLU": "g = Sigmoid (i) o = Mul (i, g)",
    "HardSwish": "g = HardSigmoid (i) o = Mul (i, g)",
}
FOR = {
    "openvino": dialect_of("openvino", "cpu", "avx512_vnni"),
    "onnxruntime": dialect_of("onnxruntime", "cpu", "avx512_vnni"),
    "tensorrt": dialect_of("tensorrt", "cuda", ""),
}


def two_convolutions(operator, rounded, kind=np.int8, zero=0):
    """Return the graph, with Q/DQ nodes `before`, `behind` or on both sides of the operator."""
    nodes = GRAPH.replace("OPERATOR", OPERATORS[operator])
    for place, (read, made, between) in {"BEFORE": ("c", "i", "qi"), "BEHIND": ("o", "r", "qr")}.items():
        pair = f"{between} = QuantizeLinear ({read}, s, z) {made} = DequantizeLinear ({between}, s, z)"
        nodes = nodes.replace(place, pair if place.lower() in rounded else f"{made} = Identity ({read})")
    weights = np.random.default_rng(0).integers(-127, 127, (2, 16, 16, 3, 3)).astype(np.int8)
    steps = {"ws": np.full(16, 0.002, np.float32), "wz": np.zeros(16, np.int8), "s": np.float32(0.05)}
    constants = {"b1": weights[0], "b2": weights[1], **steps, "z": kind(zero)}
    text = f"g (float[batch,16,12,12] input) => (float[batch,16,a,b] y) {{ {nodes} }}"
    return rewrite_graph(simplify_graph(model_of_text(text, constants)))


def after(graph, compiler):
    """Return the operators between the convolutions, which must compute the same bits."""
    made = as_compiler_takes(graph, "int8", FOR[compiler])
    onnx.checker.check_model(made, full_check=True)
    feeds = {"input": noise(3, 16, 12, 12)}
    was, now = (run_graph(open_as_written(each), feeds) for each in (graph, made))
    assert all((was[name] == now[name]).all() for name in was)
    types = [node.op_type for node in made.graph.node]
    first, second = (place for place, kind in enumerate(types) if kind == "Conv")
    return types[first + 1 : second], unfused(made, FOR[compiler])


@pytest.mark.parametrize("rounded", [("before",), ("behind",), ("before", "behind")])
@pytest.mark.parametrize("operator", ["MaxPool", "Transpose", "Concat"])
def test_what_only_passes_numbers_on_is_rounded_before_that(operator, rounded):
    """OpenVINO otherwise moves floats. TensorRT moves Q/DQ nodes itself."""
    graph = two_convolutions(operator, rounded)
    assert after(graph, "openvino") == ([Q, DQ, operator], ())
    pairs = [node.op_type for node in graph.graph.node].count(Q)
    assert after(graph, "tensorrt")[0].count(Q) == pairs - 1


@pytest.mark.parametrize("rounded", [("before",), ("behind",), ("before", "behind")])
def test_a_relu_is_rounded_where_the_compiler_has_a_kernel(rounded):
    graph = two_convolutions("Relu", rounded)
    for compiler in ("openvino", "onnxruntime"):
        assert after(graph, compiler) == ([Q, DQ, "Relu", Q, DQ], ())
    assert after(graph, "tensorrt") == (["Relu", Q, DQ], ())
    if rounded == ("behind",):  # which ONNX Runtime takes for the Relu itself
        unsigned = two_convolutions("Relu", rounded, np.uint8)
        assert after(unsigned, "onnxruntime") == (["Relu", Q, DQ], ())


def test_a_relu_that_is_returned_is_rounded_for_tensorrt_before_it_too():
    graph = two_convolutions("Relu", ("before",))
    graph.graph.output.append(next(each for each in graph.graph.value_info if each.name == "o"))
    assert after(graph, "tensorrt") == ([Q, DQ, "Relu", Q, DQ], ())


def test_openvino_computes_in_bytes_what_reads_a_relu_that_was_rounded_too_early(build, tmp_path):
    """OpenVINO does so in any case with AMX: seen on a Xeon, and not on an EPYC."""
    graph, path = two_convolutions("Relu", ("before",)), tmp_path / "model.onnx"
    second = "int8" if "amx_int8" in Path("/proc/cpuinfo").read_text() else "fp32"
    for each, known in ((graph, ["int8", second]), (as_compiler_takes(graph, "int8", FOR["openvino"]), ["int8"] * 2)):
        onnx.save(each, path)
        layers = load_runtime("openvino").compile(path, read_blueprint(path, build), tmp_path).layers
        assert [layer.precision for layer in layers if layer.kind == "Convolution"] == known


@pytest.mark.parametrize(("operator", "named"), [("Sigmoid",) * 2, ("SiLU", "Sigmoid"), ("HardSwish", "HardSigmoid")])
def test_what_no_kernel_takes_in_is_named(operator, named):
    graph = two_convolutions(operator, ("before",))
    first, second = (node.name for node in graph.graph.node if node.op_type == "Conv")
    for compiler in FOR:
        assert after(graph, compiler)[1] == (
            f"{first}: a product is rounded before its {named}.",
            f"{second}: one operand is in bytes and the other in floats.",
        )


def test_tensorrt_gets_signed_bytes_for_unsigned_ones_around_128():
    graph = two_convolutions("Sigmoid", ("behind",), np.uint8, 128)
    assert after(graph, "tensorrt") == (["Sigmoid", Q, DQ], ())
    assert types_of_rounding(as_compiler_takes(graph, "int8", FOR["tensorrt"])) == {"INT8"}
    wanted = r"^precisions\.int8\.from: TensorRT takes no zero points .* quantize it symmetrically to int8, or"
    without = two_convolutions("Sigmoid", ("behind",), np.uint8)  # ONNX's default is zero as a uint8
    for node in without.graph.node:
        if node.input[-1] == "z":
            node.input.pop()
    # NVIDIA's parser would read bytes from zero on, as NNCF writes them, as signed ones, and only warn.
    from_zero, asymmetric = (two_convolutions("Sigmoid", ("behind",), np.uint8, zero) for zero in (0, 3))
    for refused in (from_zero, asymmetric, without):
        with pytest.raises(EnginewrightError, match=wanted):
            after(refused, "tensorrt")


SIGNED = "g (float[batch,2] input) => (float[batch,2] y) { q = QuantizeLinear <ATTRIBUTES> (input, s, z) NODES }"


@pytest.mark.parametrize(
    ("nodes", "attributes", "zeros"),
    [
        ("y = DequantizeLinear (q, s, z)", "output_dtype = 2", {0}),
        ("y = DequantizeLinear (q, s, z)", "", {0}),
        ("f = DequantizeLinear (q, s, z) c = Cast <to = 1> (q) y = Add (f, c)", "", {128}),
    ],
)
def test_bytes_that_something_else_reads_keep_their_sign(nodes, attributes, zeros):
    text = SIGNED.replace("NODES", nodes).replace("<ATTRIBUTES>", f"<{attributes}>" if attributes else "")
    model = model_of_text(text, {"s": np.float32(0.05), "z": np.uint8(128)}, opset=21)
    made = apply_pass(sign_bytes, model)
    left = {each.name: numpy_helper.to_array(each) for each in made.graph.initializer}
    assert {int(left[node.input[2]]) for node in made.graph.node if node.op_type in (Q, DQ)} == zeros


def test_bytes_that_are_returned_keep_their_sign():
    text = SIGNED.replace("(float[batch,2] y)", "(float[batch,2] y, uint8[batch,2] q)").replace("<ATTRIBUTES>", "")
    nodes = text.replace("NODES", "y = DequantizeLinear (q, s, z)")
    assert changed_by(model_of_text(nodes, {"s": np.float32(0.05), "z": np.uint8(128)}), sign_bytes) is None


@pytest.mark.parametrize("change", [dequantize_biases, sign_bytes])
def test_what_nobody_reads_is_no_change_for_tensorrt(change):
    text = "g (float[batch,2] input) => (float[batch,2] y) { y = Relu (input) unread = Neg (input) }"
    assert changed_by(model_of_text(text), change) is None


def test_nvidias_own_builder_takes_what_onnxruntimes_quantizer_writes(tiny_onnx, samples, build, tmp_path):
    """Its biases have 32 bits, which the parser refuses."""
    pytest.importorskip("tensorrt_rtx")
    path = tmp_path / "model.onnx"
    quantize_with_onnxruntime(tiny_onnx, path, samples.cycled(8), "QInt8")

    def built():
        load_runtime("tensorrt_rtx").compile(path, read_blueprint(path, build), tmp_path)
        return (tmp_path / "engine.plan").stat().st_size

    with building_here():
        with pytest.raises(EnginewrightError, match="input has type Int32 but must have type"):
            built()
        onnx.save(as_compiler_takes(load_graph(path), "int8", FOR["tensorrt"]), path)
        assert built() > 1000
