import numpy as np
import onnx
import pytest

from enginery.core.errors import EngineryError
from enginery.graphs import arbiter, check_graph, count_nodes, load_graph, run_graph, save_graph


def logits(*values):
    return {"logits": np.array([values])}


def test_a_graph_is_saved_and_loaded_as_it_was(tiny_graph, tmp_path):
    save_graph(tiny_graph, tmp_path / "model.onnx")
    assert load_graph(tmp_path / "model.onnx") == tiny_graph


def test_a_missing_graph_says_how_to_make_it(tmp_path):
    with pytest.raises(EngineryError, match=r"model\.onnx is missing: run `dvc repro`"):
        load_graph(tmp_path / "model.onnx")


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99])
def test_a_truncated_graph_is_refused(tiny_onnx, tmp_path, share):
    content = tiny_onnx.read_bytes()
    (tmp_path / "model.onnx").write_bytes(content[: int(len(content) * share)])
    with pytest.raises(EngineryError, match=r"model\.onnx is not a valid ONNX file"):
        load_graph(tmp_path / "model.onnx")


def test_an_invalid_graph_is_refused(tiny_graph, tmp_path):
    broken = onnx.ModelProto.FromString(tiny_graph.SerializeToString())
    broken.graph.node[0].input[0] = "nothing"
    onnx.save(broken, tmp_path / "model.onnx")
    with pytest.raises(EngineryError, match=r"model\.onnx is not a valid ONNX file"):
        load_graph(tmp_path / "model.onnx")


def test_nodes_are_counted_by_type(tiny_graph):
    assert count_nodes(tiny_graph) == {"Conv": 2, "Flatten": 1, "Gemm": 1, "GlobalAveragePool": 1, "Relu": 2}


def test_a_graph_runs_from_memory_as_from_disk(tiny_graph, tiny_onnx, samples):
    feeds = samples.cycled(3)
    from_memory, from_disk = run_graph(arbiter(tiny_graph), feeds), run_graph(arbiter(tiny_onnx), feeds)
    assert from_memory.keys() == from_disk.keys() == {"logits"}
    assert np.array_equal(from_memory["logits"], from_disk["logits"])


def test_a_graph_within_the_limit_passes_with_its_errors():
    check = check_graph(logits(3.0, 4.0), logits(3.0, 4.5), 0.2, "test")
    assert (check.samples, check.max_abs_error, check.relative_error) == (1, 0.5, 0.1)


@pytest.mark.parametrize("got", [[3.0, 5.0], [3.0, np.nan], [np.inf, 4.0]])
def test_a_graph_beyond_the_limit_stops_the_pipeline(got):
    with pytest.raises(
        EngineryError, match=r"simplify: wrong: the relative error of logits is .* may be 1e-01 at most"
    ):
        check_graph(logits(3.0, 4.0), logits(*got), 0.1, "simplify: wrong")
