"""What a graph answers while it is calibrated is kept for a search."""

from dataclasses import replace

import numpy as np
import pytest

from enginery.core.params.calibration import CalibrationParams
from enginery.graph.as_written import run_as_written
from enginery.graph.files import graph_sha256
from enginery.graph.onnx_file import load_graph, save_graph
from enginery.quantization.calibration import answers, measure
from enginery.quantization.calibration.answers import kept_answers
from enginery.quantization.calibration.calibrate import calibrate_graph

PARAMS = CalibrationParams(method="max", percentile=99.9, bins=2048, batch=8, file=None)


@pytest.fixture
def calibrated(tiny_onnx, samples, tmp_path, monkeypatch):
    """Return a function that calibrates the graph, and tells its hash and its file."""
    monkeypatch.setattr(answers, "user_cache_path", lambda _: tmp_path / "cache")

    def made(batch=None, samples=samples):
        graph = load_graph(tiny_onnx)
        if batch:
            graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
        save_graph(graph, tmp_path / "model.onnx")
        calibrate_graph(tmp_path, samples, PARAMS, None, tmp_path)
        return graph_sha256(tmp_path / "model.onnx")

    return made


@pytest.mark.parametrize("batch", [None, 8])  # the last one of 8 is filled from the start of the set
def test_answers_to_all_samples_are_kept(calibrated, tiny_onnx, samples, batch):
    known = kept_answers(calibrated(batch), samples)
    wanted = run_as_written(tiny_onnx)(samples.cycled(len(samples)))
    assert known.keys() == wanted.keys()
    np.testing.assert_allclose(known["logits"], wanted["logits"], rtol=1e-4, atol=1e-6)


def test_nothing_is_known_of_texts_large_answers_others_and_damaged_files(calibrated, samples, tmp_path, monkeypatch):
    assert kept_answers("another graph", samples) is kept_answers(None, samples) is None
    model = calibrated()
    (file,) = (tmp_path / "cache" / "answers").glob("*.npz")
    file.write_bytes(file.read_bytes()[:100])
    assert kept_answers(model, samples) is None
    file.unlink()
    padded = replace(samples)
    vars(padded)["lengths"] = np.arange(len(samples))
    answers.keep_answers(model, padded, [{"logits": np.zeros((len(samples), 16), np.float32)}])
    monkeypatch.setattr(measure, "SMALL", 63)  # bytes; an answer has 64
    calibrated()
    assert not file.exists()


def test_the_oldest_file_goes_first_and_a_disk_that_takes_none_is_no_error(calibrated, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(answers, "MOST_FILES", 1)
    first, second = calibrated(), calibrated(7)
    assert kept_answers(first, samples) is None
    assert kept_answers(second, samples) is not None
    monkeypatch.setattr(answers, "user_cache_path", lambda _: tmp_path / "model.onnx")
    assert kept_answers(calibrated(), samples) is None
