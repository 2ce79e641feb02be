"""The stage: what simplifying broke is found at each size that the graph must take."""

import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.checkout import ROOT, Project
from support.pass_checks import model_of_text

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.graph.simplify import Simplification, fold_constants, simplify_graph
from enginewright.pipeline import ranges as stage
from enginewright.precision.write_int8 import tensors_in_int8

RANGE = {"min": 8, "opt": 8, "max": 16}


def mean_of_images(nodes):
    graph = helper.make_graph(
        [*nodes, helper.make_node("Relu", ["mean"], ["logits"])],
        "mean",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, "height", "width"])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 3, 1, 1])],
        [numpy_helper.from_array(np.array(value, dtype), name) for name, value, dtype in CONSTANTS],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


CONSTANTS = (("axes", [2, 3], np.int64), ("pixels", 64, np.float32))
MEAN = [helper.make_node("ReduceMean", ["input", "axes"], ["mean"])]
AT_ONE_SIZE = [
    helper.make_node("ReduceSum", ["input", "axes"], ["sum"]),
    helper.make_node("Div", ["sum", "pixels"], ["mean"]),
]


@pytest.fixture
def simplify(samples, tmp_path, monkeypatch):
    project = Project(tmp_path)
    shutil.copy(ROOT / "params.yaml", tmp_path)
    preprocessing = samples.manifest.preprocessing.model_dump(mode="json", exclude_defaults=True)
    project.set(**{"samples.preprocessing": preprocessing, "weights.training.size": 8})
    project.set(**{"build.profile.height": RANGE, "build.profile.width": RANGE})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "exported").mkdir()
    onnx.save(mean_of_images(MEAN), tmp_path / "exported/model.onnx")
    folders = [tmp_path / name for name in ("simplified", "given")]
    return lambda: stage.simplify(Params.read(), tmp_path / "exported", samples.folder, *folders)


def test_a_graph_with_a_constant_sequence_stays_as_it_is():
    """Polygraphy takes the list of arrays for an array."""
    nodes = "s = SequenceConstruct (a, a) b = SequenceAt (s, place) y = Add (input, b)"
    constants = {"a": np.float32(1), "place": np.array(1)}
    model = model_of_text(f"g (float[2] input) => (float[2] y) {{ {nodes} }}", constants)
    assert fold_constants(model) == model


def old_graph():
    nodes = "r = Relu (input) u = Upsample (r, by) logits = Conv (u, w)"
    graph = onnx.parser.parse_graph(f"g (float[N,3,8,8] input) => (float[N,4,16,16] logits) {{ {nodes} }}")
    for name, values in (("by", np.float32([1, 1, 2, 2])), ("w", np.ones((4, 3, 1, 1), np.float32))):
        graph.initializer.append(numpy_helper.from_array(values, name))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 9)], ir_version=4)


def test_an_old_graph_is_raised_before_its_tensors_are_measured():
    """ONNX names the output of a Resize anew that was an Upsample."""
    raised = simplify_graph(old_graph())
    assert raised.opset_import[0].version == 13
    assert set(tensors_in_int8(raised)) <= {name for node in raised.graph.node for name in node.output}


def test_a_graph_that_cannot_be_raised_is_simplified_all_the_same(monkeypatch):
    """A float precision needs no newer operators."""
    monkeypatch.setattr(onnx.version_converter, "convert_version", lambda *_: 1 / 0)
    assert simplify_graph(old_graph()).opset_import[0].version == 9


def test_what_was_removed_is_recorded(simplify, tmp_path):
    simplify()
    record = Simplification.read(tmp_path / "simplified/simplify.json")
    assert record.nodes_before == {"ReduceMean": 1, "Relu": 1}
    assert (record.against_exported.samples, record.against_exported.relative_error) == (7, 0)


def test_a_graph_that_is_right_only_at_the_samples_size_stops_the_pipeline(simplify, tmp_path, monkeypatch):
    monkeypatch.setattr(stage, "simplify_graph", lambda model: mean_of_images(AT_ONE_SIZE))
    with pytest.raises(EnginewrightError, match="does not compute what the exported one computes: the relative error"):
        simplify()
    assert not (tmp_path / "simplified").exists()


def test_products_of_a_transformer_stay_apart_beside_their_biases():
    rows, matrices = "float[batch,6,4]", {name: np.full((4, 4), at, np.float32) for at, name in enumerate("qkv", 1)}
    biases = {f"{name}b": np.full(4, 0.5, np.float32) for name in matrices}
    nodes = " ".join(f"{name}0 = MatMul (x, {name}) {name}1 = Add ({name}0, {name}b)" for name in matrices)
    model = model_of_text(f"g ({rows} x) => ({rows} q1, {rows} k1, {rows} v1) {{ {nodes} }}", matrices | biases)
    assert [node.op_type for node in simplify_graph(model).graph.node] == ["MatMul", "Add"] * 3


def test_an_attention_of_one_place_keeps_its_softmax():
    """The last of MobileViT's at 64 pixels. As a constant, NVIDIA's builder ended in `kqv_gemm_split.cpp: CHECK(0)`."""
    row = "float[batch,2,1,4]"
    nodes = "t = Transpose <perm = [0, 1, 3, 2]> (k) a = MatMul (q, t) p = Softmax (a) y = MatMul (p, v)"
    model = model_of_text(f"g ({row} q, {row} k, {row} v) => ({row} y) {{ {nodes} }}")
    assert "Softmax" in [node.op_type for node in simplify_graph(model).graph.node]
