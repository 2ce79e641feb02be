"""Weights that are too many for an ONNX file are beside it. Every step then makes what it makes of a single file."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.checkout import ROOT, Project
from support.quantized import KEEP_NOTHING

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph import data_apart
from enginewright.graph.as_written import float32_twin, open_as_written, run_graph
from enginewright.graph.data_apart import array_of, is_large
from enginewright.graph.files import copy_graph, data_of, graph_bytes, graph_files, graph_sha256
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.passes import rewrite_graph
from enginewright.pipeline.ranges import simplify
from enginewright.pipeline.weights import weights
from enginewright.precision.calibration.calibrate import measure
from enginewright.precision.cast import cast
from enginewright.precision.quantize import quantize
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8

AMAX = {"input": 4.0, "conv": 9.0, "relu": 9.0, "conv_2": 30.0, "relu_2": 30.0, "pooled": 9.0, "features": 9.0}
BOUNDS = {name: Bounds(-largest, largest) for name, largest in AMAX.items()}


@pytest.fixture
def lowered(monkeypatch):
    """Let a kilobyte be too much."""
    monkeypatch.setattr(data_apart, "MOST_BYTES", 1000)
    monkeypatch.setattr(data_apart, "FEWEST_BYTES", 256)


@pytest.fixture
def large_onnx(tiny_graph, tmp_path, lowered):
    (tmp_path / "large").mkdir()
    save_graph(tiny_graph, tmp_path / "large/model.onnx")
    return tmp_path / "large/model.onnx"


@pytest.fixture
def images(samples):
    return samples.cycled(4)["input"]


def outputs(graph, images):
    return run_graph(open_as_written(graph), {"input": images})["logits"]


def test_both_files_are_written_read_copied_and_hashed(tiny_graph, large_onnx, tmp_path):
    assert graph_files(large_onnx) == [large_onnx, data_of(large_onnx)] == sorted(large_onnx.parent.iterdir())
    graph = load_graph(large_onnx)
    values = {tensor.name: array_of(tensor) for tensor in graph.graph.initializer}
    assert all((values[each.name] == numpy_helper.to_array(each)).all() for each in tiny_graph.graph.initializer)
    assert {tensor.name for tensor in graph.graph.initializer if not tensor.external_data} == {"b1", "b2", "b3"}
    (tmp_path / "copy").mkdir()
    copied = copy_graph(large_onnx, tmp_path / "copy")
    assert graph_sha256(copied) == graph_sha256(large_onnx)
    assert graph_bytes(copied) == sum(file.stat().st_size for file in large_onnx.parent.iterdir())
    save_graph(load_graph(copied), copied)  # over the file that the graph refers to
    assert graph_sha256(copied) == graph_sha256(large_onnx)
    data_of(copied).write_bytes(bytes(data_of(copied).stat().st_size))
    assert graph_sha256(copied) != graph_sha256(large_onnx)


def test_a_stage_that_depends_on_the_onnx_file_depends_on_the_weights(tiny_graph, large_onnx):
    before = large_onnx.read_bytes()
    other = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    other.graph.initializer[0].raw_data = other.graph.initializer[0].raw_data[::-1]
    save_graph(other, large_onnx)
    assert large_onnx.read_bytes() != before


def test_weights_that_fit_are_one_file_again(tiny_graph, tiny_onnx, large_onnx, images, monkeypatch):
    graph = load_graph(large_onnx)
    monkeypatch.setattr(data_apart, "MOST_BYTES", 1 << 20)
    assert not is_large(graph)
    assert np.array_equal(outputs(graph, images), outputs(tiny_graph, images))  # as of ViT-H's int8, half as large
    save_graph(graph, large_onnx)
    assert not data_of(large_onnx).exists()
    assert load_graph(large_onnx) == tiny_graph


@pytest.mark.parametrize("damage", [lambda data: data.unlink(), lambda data: data.write_bytes(b"cut")])
def test_missing_and_truncated_weights_are_a_sentence(large_onnx, damage):
    damage(data_of(large_onnx))
    with pytest.raises(EnginewrightError, match=r"model\.onnx is not a valid ONNX file, it may be truncated: .*data"):
        load_graph(large_onnx)


MADE = {
    "rewritten": lambda path: rewrite_graph(load_graph(path)),
    "fp16": lambda path: cast(path, "fp16", KEEP_NOTHING),
    "bf16": lambda path: float32_twin(cast(path, "bf16", KEEP_NOTHING)),
    "int8 of TensorRT": lambda path: quantize(path, "int8", AMAX, KEEP_NOTHING, "fp16"),
    "int8 in float32": lambda path: quantize(path, "int8", AMAX, KEEP_NOTHING, "fp32"),
    "fp8": lambda path: quantize(path, "fp8", AMAX, KEEP_NOTHING, "fp16"),
    "int8 of CPUs": lambda path: write_int8(load_graph(path), Rounding(BOUNDS)),
}


@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_a_graph_in_two_files_becomes_what_one_in_a_file_becomes(made, tiny_onnx, large_onnx, images, tmp_path):
    graph = made(large_onnx)
    save_graph(graph, tmp_path / "made.onnx")
    assert np.array_equal(outputs(tmp_path / "made.onnx", images), outputs(made(tiny_onnx), images))


def test_ranges_are_the_same(tiny_onnx, large_onnx, images):
    one, other = (measure(load_graph(path), [{"input": images}], 128) for path in (tiny_onnx, large_onnx))
    assert {name: found.amax for name, found in one.items()} == {name: found.amax for name, found in other.items()}


@pytest.fixture
def here(samples, tmp_path, monkeypatch):
    """A folder with parameters for the images of the tests."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    project = Project(tmp_path)
    preprocessing = samples.manifest.preprocessing.model_dump(mode="json", exclude_defaults=True)
    project.set(**{"samples.preprocessing": preprocessing, "weights.training.size": 8})
    monkeypatch.chdir(tmp_path)
    return project


def test_a_users_file_with_its_weights_beside_it_is_taken_in(tiny_graph, samples, here, lowered, images):
    models = Path("data/models")
    models.mkdir(parents=True)
    given = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    onnx.save(given, models / "own.onnx", save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0)
    here.set(
        **{"model.source": "data/models/own.onnx", "weights.source": "given", "benchmark.baselines": ["onnxruntime"]}
    )
    weights(Params.read(), Path("data/weights"), models, samples.folder, Path("weights"))
    assert sorted(path.name for path in Path("weights").iterdir()) == ["model.onnx", "model.onnx.data", "weights.json"]
    assert np.array_equal(outputs(Path("weights/model.onnx"), images), outputs(tiny_graph, images))


def test_a_graph_is_simplified_from_file_to_file(samples, here, lowered):
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], "transpose", perm=[1, 0]),  # to be folded
        helper.make_node("Flatten", ["input"], ["flat"], "flatten"),
        helper.make_node("MatMul", ["flat", "t"], ["logits"], "product"),
    ]
    (Path("exported")).mkdir()
    graph = helper.make_graph(
        nodes,
        "folded",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.ones((4, 192), np.float32), "w")],
    )
    save_graph(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10),
        Path("exported/model.onnx"),
    )
    simplify(Params.read(), Path("exported"), samples.folder, Path("simplified"), Path("given"))
    assert [path.name for path in sorted(Path("simplified").iterdir())] == [
        "model.onnx", "model.onnx.data", "simplify.json",
    ]  # fmt: skip
    assert "Transpose" not in {node.op_type for node in load_graph(Path("simplified/model.onnx")).graph.node}


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_an_engine_is_built_of_it(runtime, large_onnx, samples, build, inference, images, tmp_path):
    machine = describe_machine(runtime)
    target = target_of(machine, build.tensorrt)
    record = build_engine(DescribedGraph("fp32", large_onnx, samples.manifest), target, build, tmp_path / "built")
    assert record.onnx_sha256 == graph_sha256(large_onnx)
    with open_engine(tmp_path / "built", machine, inference) as engine:
        assert np.allclose(engine.run({"input": images})["logits"], outputs(large_onnx, images), atol=1e-4)
