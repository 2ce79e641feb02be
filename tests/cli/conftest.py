"""A project with an int8 engine of ONNX Runtime."""

import shutil
import tempfile

import pytest
from support.params import written
from support.project import make_project

from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.quantize import activations
from enginewright.precision.write_int8 import Bounds, Rounding, write_int8


@pytest.fixture
def project(tmp_path, tiny_onnx, build, manifest, samples, monkeypatch):
    """Return what lays out a project with an int8 engine of ONNX Runtime."""

    def make():
        here = describe_machine("onnxruntime")
        graph = load_graph(tiny_onnx)
        ranges = {name: Bounds(-8.0, 8.0) for name in activations(graph)}
        save_graph(write_int8(graph, Rounding(ranges, exact_sums=False)), tmp_path / "int8.onnx")
        described = DescribedGraph("int8", tmp_path / "int8.onnx", manifest)
        build_engine(described, target_of(here, build.tensorrt), build, tmp_path / "engine")
        root = make_project(tmp_path / "project", tmp_path / "engine", tmp_path / "int8.onnx", here)
        shutil.copytree(samples.folder, root / "artifacts/samples/validation")
        written(root, {"runtime": "onnxruntime", "benchmark.seconds": 0.02})
        monkeypatch.chdir(root)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its machine's lock is not that of other tests
        return root

    return make
