"""The stages of a search, from a calibration to the graph that follows the answer, where ModelOpt writes that."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, numpy_helper
from support.paths import ROOT
from support.small_project import lay_over

from enginewright.core.params.all import Params
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.pipeline.graphs import ConvertPaths, convert
from enginewright.pipeline.ranges import RescuePaths, calibrate, rescue
from enginewright.pipeline.search import SearchPaths, search
from enginewright.precision import search as journal
from enginewright.precision.cure import Cures
from enginewright.precision.dialect import dialect_of
from enginewright.precision.records import AIM, RESCUE, SEARCH, Rescue, Search

RECIPE = """
calibration: {method: max}
search: {PRECISION: {seconds: 600}}
precisions:
  PRECISION:
    from: searched
    rescue: auto
    keep: {op_types: [], nodes: [], rest: auto}
    thresholds: {cosine: 0.9, relative_error: 0.045, agreement: 0, metric_drop: 1}
"""


@pytest.fixture
def run_stages(samples, tmp_path, monkeypatch):
    """Run the stages in a folder of its own, and return what the search found and the graph that follows it."""

    def run(onnx, precision, *compiler):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(journal, "user_cache_path", lambda _: tmp_path / "cache")
        shutil.copyfile(ROOT / "params.yaml", "params.yaml")
        lay_over(RECIPE.replace("PRECISION", precision))
        simplified, calibrated, rescued, searched = (
            Path(name) for name in ("simplified", "calibrated", "rescued", "found")
        )
        for folder in (simplified, rescued, searched):
            folder.mkdir()
        shutil.copyfile(onnx, simplified / "model.onnx")
        code, dialect, boxes, cures = (Path(f"{name}.json") for name in ("code", "dialect", "boxes", "cures"))
        Cures(by_precision={}).write(cures)
        code.touch()
        dialect_of(*compiler).write(dialect)
        BoxesInGraph().write(boxes)

        params = Params.read()
        calibrate(params, Path("data"), simplified, samples.folder, dialect, calibrated)
        rescue(params, precision, RescuePaths(simplified, calibrated, samples.folder, dialect, rescued / precision))
        given = samples.folder, dialect
        search(
            params,
            precision,
            SearchPaths(simplified, calibrated, rescued / precision, *given, code, searched / f"{precision}.json"),
        )
        convert(
            params,
            precision,
            ConvertPaths(simplified, searched, calibrated, rescued, *given, boxes, cures, Path(precision)),
        )
        return Search.read(Path(precision) / SEARCH), load_graph(Path(precision) / "model.onnx")

    return run


def in_bytes(graph):
    makers = {name: node.op_type for node in graph.graph.node for name in node.output}
    return {node.name for node in graph.graph.node if makers.get(*node.input[:1], "") == "DequantizeLinear"}


def test_fp8_leaves_out_what_its_search_spares(run_stages, tiny_onnx):
    found, written = run_stages(tiny_onnx, "fp8", "openvino", "cpu", "avx512_vnni")
    assert (found.precision, Rescue.read(Path("fp8") / RESCUE).kept) == ("fp8", ())  # float8 is not rounded to bytes
    assert found.chosen.spent <= AIM < found.path[0].spent
    assert (found.spared, in_bytes(written)) == (("classifier",), {"conv2"})  # conv1 reads too few channels for fp8
    assert TensorProto.FLOAT8E4M3FN in {tensor.data_type for tensor in written.graph.initializer}


def test_what_float16_cannot_hold_is_in_float32_beside_int8(run_stages, tiny_graph, tmp_path):
    """An EfficientNet on an H200 was so: its layers in float16 took 95 % of what int8 is allowed."""
    model = ModelProto.FromString(tiny_graph.SerializeToString())
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for name, factor in (("w1", 1e5), ("w2", 1e-5)):
        weights[name].CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights[name]) * np.float32(factor), name))
    save_graph(model, tmp_path / "large.onnx")
    found, written = run_stages(tmp_path / "large.onnx", "int8", "tensorrt", "cuda", "9.0")
    assert found.rest == "fp32"
    assert found.chosen.spent <= AIM
    assert in_bytes(written)
    assert TensorProto.FLOAT16 not in {tensor.data_type for tensor in written.graph.initializer}
