import subprocess
import sys

import onnx
import pytest
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.graph.as_written import open_as_written
from enginewright.graph.onnx_file import count_nodes, load_graph, save_graph


def test_a_graph_is_saved_and_loaded_as_it_was(tiny_graph, tmp_path):
    save_graph(tiny_graph, tmp_path / "model.onnx")
    assert load_graph(tmp_path / "model.onnx") == tiny_graph


def test_a_file_of_the_newest_format_runs(tiny_graph, tmp_path):
    """It is what onnx's own helper writes, and ONNX Runtime refuses it."""
    newest = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    newest.ir_version = onnx.IR_VERSION
    onnx.save(newest, tmp_path / "model.onnx")
    with pytest.raises(Exception, match="Unsupported model IR version"):
        open_as_written(tmp_path / "model.onnx")
    assert open_as_written(load_graph(tmp_path / "model.onnx"))


def test_a_missing_graph_says_how_to_make_it(tmp_path):
    with pytest.raises(EnginewrightError, match=r"model\.onnx is missing: run `dvc repro`"):
        load_graph(tmp_path / "model.onnx")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_graph_is_refused(tiny_onnx, tmp_path, share):
    content = tiny_onnx.read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(EnginewrightError, match=r"model\.onnx is not a valid ONNX file"):
        load_graph(tmp_path / "model.onnx")


def test_an_invalid_graph_is_refused(tiny_graph, tmp_path):
    broken = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    broken.graph.node[0].input[0] = "nothing"
    onnx.save(broken, tmp_path / "model.onnx")
    with pytest.raises(EnginewrightError, match=r"model\.onnx is not a valid ONNX file"):
        load_graph(tmp_path / "model.onnx")


def test_truncated_weights_beside_a_file_are_named_with_it(tiny_graph, tmp_path):
    path = tmp_path / "model.onnx"
    model = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    onnx.save(model, path, save_as_external_data=True, location="weights.data", size_threshold=0)
    (tmp_path / "weights.data").write_bytes(b"cut")
    with pytest.raises(
        EnginewrightError, match=r"model\.onnx is not a valid ONNX file, it may be truncated: External data"
    ):
        load_graph(path)


def test_nodes_are_counted_by_type(tiny_graph):
    assert count_nodes(tiny_graph) == {"Conv": 2, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "Relu": 2}


def test_no_module_but_the_passes_imports_slow_packages():
    """Stages import these modules, and onnx_ir, SymPy and PyTorch take seconds."""
    modules = [f"enginewright.graph.{file.stem}" for file in (ROOT / "enginewright/graph").glob("[a-z]*.py")]
    code = f"import sys, {', '.join(modules)}; print({{'onnx_ir', 'sympy', 'torch', 'onnxsim'}} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT) == "set()\n"
