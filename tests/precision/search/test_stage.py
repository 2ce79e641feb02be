"""The stages of a search, from a calibration to the graph that follows the answer: in fp8, which ModelOpt writes."""

import shutil
from pathlib import Path

from onnx import TensorProto
from support.paths import ROOT
from support.small_project import lay_over

from enginewright.core.params.all import Params
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.onnx_file import load_graph
from enginewright.pipeline.graphs import ConvertPaths, RescuePaths, convert, rescue
from enginewright.pipeline.ranges import calibrate
from enginewright.pipeline.search import SearchPaths, search
from enginewright.precision import search as journal
from enginewright.precision.calibration import cache as answers
from enginewright.precision.cure import Cures
from enginewright.precision.dialect import dialect_of
from enginewright.precision.records import AIM, RESCUE, SEARCH, Rescue, Search

RECIPE = """
calibration: {method: max}
search: {fp8: {seconds: 600}}
precisions:
  fp8:
    from: searched
    rescue: auto
    keep: {op_types: [], nodes: [], rest: auto}
    thresholds: {cosine: 0.9, relative_error: 0.045, agreement: 0, metric_drop: 1}
"""


def test_fp8_leaves_out_what_its_search_spares(tiny_onnx, samples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for module in (answers, journal):
        monkeypatch.setattr(module, "user_cache_path", lambda _: tmp_path / "cache")
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    lay_over(RECIPE)
    simplified, calibrated, rescued, searched = (
        Path(name) for name in ("simplified", "calibrated", "rescued", "found")
    )
    for folder in (simplified, rescued, searched):
        folder.mkdir()
    shutil.copyfile(tiny_onnx, simplified / "model.onnx")
    code, dialect, boxes, cures = (Path(f"{name}.json") for name in ("code", "dialect", "boxes", "cures"))
    Cures(by_precision={}).write(cures)
    code.touch()
    dialect_of("openvino", "cpu", "avx512_vnni").write(dialect)
    BoxesInGraph().write(boxes)

    params = Params.read()
    calibrate(params, Path("data"), simplified, samples.folder, dialect, calibrated)
    rescue(params, "fp8", RescuePaths(simplified, calibrated, samples.folder, dialect, rescued / "fp8"))
    given = samples.folder, dialect
    search(params, "fp8", SearchPaths(simplified, calibrated, rescued / "fp8", *given, code, searched / "fp8.json"))
    convert(params, "fp8", ConvertPaths(simplified, searched, calibrated, rescued, *given, boxes, cures, Path("fp8")))

    found, rescued_by = Search.read(Path("fp8") / SEARCH), Rescue.read(Path("fp8") / RESCUE)
    assert (found.precision, rescued_by.kept) == ("fp8", ())  # weights in float8 are not rounded to bytes
    assert found.chosen.spent <= AIM < found.path[0].spent
    written = load_graph(Path("fp8/model.onnx"))
    makers = {name: node.op_type for node in written.graph.node for name in node.output}
    in_bytes = {node.name for node in written.graph.node if makers.get(*node.input[:1], "") == "DequantizeLinear"}
    assert (found.spared, in_bytes) == (("classifier",), {"conv2"})  # conv1 reads too few channels for fp8
    assert TensorProto.FLOAT8E4M3FN in {tensor.data_type for tensor in written.graph.initializer}
