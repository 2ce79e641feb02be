"""A model that is quantized already: its floats, and int8 with its own scales."""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.checkout import Project
from support.pass_checks import model_of_text
from support.paths import ROOT
from support.small_project import TINY, lay_over, run_pipeline, small_project

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import count_nodes, load_graph
from enginewright.graph.passes import changed_by
from enginewright.graph.passes.without_rounding import take_out_rounding
from enginewright.measure.agreement import relative_error
from enginewright.pipeline.graphs import ConvertPaths, convert
from enginewright.pipeline.ranges import simplify
from enginewright.precision.cure import Cures
from enginewright.precision.dialect import dialect_of

Q, DQ = "QuantizeLinear", "DequantizeLinear"


# In a process of its own, as ModelOpt changes ONNX Runtime's quantizer where it was imported.
QUANTIZE = """
import sys
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
source, target, feeds, kind = sys.argv[1:]
class OneBatch(CalibrationDataReader):
    left = [dict(np.load(feeds))]
    def get_next(self):
        return self.left.pop() if self.left else None
quantize_static(
    source, target, OneBatch(), QuantFormat.QDQ, per_channel=True, activation_type=QuantType[kind],
    weight_type=QuantType.QInt8, extra_options={"ActivationSymmetric": kind == "QInt8"},
)
"""


def quantized(source, target, feeds, kind="QUInt8"):
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "feeds.npz"), **feeds)
        command = [sys.executable, "-c", QUANTIZE, source, target, Path(folder, "feeds.npz"), kind]
        subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(params=["QUInt8", "QInt8"], ids=["uint8", "int8"])
def project(request, tiny_onnx, samples, tmp_path, monkeypatch):
    """A folder with the tiny graph as ONNX Runtime quantizes it. In uint8, that leaves out each Relu."""
    project = Project(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    project.set(**{"precisions.int8.from": "given", "build.pixels": None})
    project.set(search={})
    monkeypatch.chdir(tmp_path)
    Path("exported").mkdir()
    quantized(tiny_onnx, "exported/model.onnx", samples.cycled(8), request.param)
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
    assert Path("int8/model.onnx").read_bytes() == Path("given/model.onnx").read_bytes()
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
    quantized(
        tiny_onnx,
        "data/models/tiny.onnx",
        {"input": plain * np.random.default_rng(0).choice([1, 0.5], plain.shape).astype(np.float32)},
    )
    text = re.sub(r"(?ms)^search:.*?(?=^mix:)", "search: {}\n", Path("params.yaml").read_text())
    Path("params.yaml").write_text(text)
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
    (found,) = (onnx.numpy_helper.to_array(tensor) for tensor in floats.graph.initializer)
    assert found.ravel().tolist() == [0.5, 1, 6, -8]


def test_bytes_that_an_operator_reads_are_refused():
    nodes = "q = QuantizeLinear (input, s) r = Reshape (q, flat) y = DequantizeLinear (r, s)"
    constants = {"s": np.float32(0.5), "flat": np.array([-1])}
    model = model_of_text(f"g (float[2,4] input) => (float[8] y) {{ {nodes} }}", constants)
    with pytest.raises(EnginewrightError, match=r"^y dequantizes what Reshape makes, and only pairs .* write QDQ$"):
        changed_by(model, take_out_rounding)
