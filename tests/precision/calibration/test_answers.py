"""What a graph answers while it is calibrated is kept for a search."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from support.pass_checks import model_of_text

from enginewright.core.params.precisions import CalibrationParams
from enginewright.data.sample_set import MANIFEST, SampleSet
from enginewright.graph.as_written import run_as_written
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.precision.calibration import cache, calibrate
from enginewright.precision.calibration.cache import keep_answers, kept_answers
from enginewright.precision.calibration.calibrate import calibrate_graph, ranges_of_parts
from enginewright.precision.dialect import dialect_of

CPU = dialect_of("openvino", "cpu", "avx512_vnni")
PARAMS = CalibrationParams(method="max", percentile=99.9, bins=2048, batch=8, file=None)


@pytest.fixture
def calibrated(tiny_onnx, samples, tmp_path, monkeypatch):
    """Return a function that calibrates the graph, and returns its ranges."""
    monkeypatch.setattr(cache, "user_cache_path", lambda _: tmp_path / "cache")

    def made(batch=None, samples=samples):
        graph = load_graph(tiny_onnx)
        if batch:
            graph.graph.input[0].type.tensor_type.shape.dim[0].dim_value = batch
        save_graph(graph, tmp_path / "model.onnx")
        return calibrate_graph(tmp_path, samples, PARAMS, CPU, None, tmp_path)

    return made


@pytest.mark.parametrize("batch", [None, 8])  # the last one of 8 is filled from the start of the set
def test_answers_to_all_samples_are_kept(calibrated, tiny_onnx, samples, batch):
    known = kept_answers(calibrated(batch), samples)
    wanted = run_as_written(tiny_onnx)(samples.cycled(len(samples)))
    assert known.keys() == wanted.keys()
    np.testing.assert_allclose(known["logits"], wanted["logits"], rtol=1e-4, atol=1e-6)


def test_as_many_are_kept_as_a_search_may_look_at(calibrated, samples, monkeypatch):
    monkeypatch.setattr(calibrate, "MOST_ANSWERS", 9)
    assert len(kept_answers(calibrated(), samples)["logits"]) == 16  # two batches of eight


def test_the_ranges_of_a_part_are_what_its_samples_reach(calibrated, tiny_onnx, samples):
    ranges, graph = calibrated(), load_graph(tiny_onnx)
    some = np.arange(3)
    whole, found = ranges_of_parts(ranges, graph, samples, [np.arange(len(samples)), some])
    assert whole.amax == pytest.approx(ranges.amax, rel=1e-5)
    assert found.amax["input"] == pytest.approx(np.abs(samples.read_at(some)["input"]).max())
    assert found.amax["logits"] < ranges.amax["logits"]
    assert (found.cache_sha256, found.methods) == (ranges.cache_sha256, ranges.methods)


def test_nothing_is_known_of_another_model_set_or_range(calibrated, samples, tmp_path):
    ranges = calibrated()
    for other in ("model_sha256", "cache_sha256"):
        assert kept_answers(ranges.model_copy(update={other: "another"}), samples) is None
    shutil.copytree(samples.folder, tmp_path / "others")
    with (tmp_path / "others" / MANIFEST).open("a") as manifest:
        manifest.write("\n")
    assert kept_answers(ranges, SampleSet.open(tmp_path / "others")) is None
    assert kept_answers(ranges, samples) is not None


@pytest.mark.parametrize(
    "damage", [lambda whole: b"", lambda whole: whole[:100], lambda whole: whole.replace(b"PK", b"  ")]
)
def test_nothing_is_known_from_a_damaged_file(calibrated, samples, tmp_path, damage):
    ranges = calibrated()
    (file,) = (tmp_path / "cache" / "answers").glob("*.npz")
    file.write_bytes(damage(file.read_bytes()))
    assert kept_answers(ranges, samples) is None


def test_no_answers_are_kept_to_texts_or_that_are_large_or_of_other_sizes(calibrated, samples, tmp_path, monkeypatch):
    padded = replace(samples)
    vars(padded)["lengths"] = np.arange(len(samples))
    keep_answers(calibrated(samples=padded), samples, [{"y": np.zeros((8, size), np.float32)} for size in (3, 4)])
    monkeypatch.setattr(calibrate, "SMALL", 63)  # bytes; an answer has 64
    calibrated()
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("nodes", ["y = ReduceMean <keepdims = 0> (x)", "y = Concat <axis = 0> (x, x)"])
def test_what_is_not_an_answer_to_each_sample_is_none(nodes):
    model = model_of_text(f"g (float[batch,4] x) => (float[] y) {{ {nodes} }}")
    assert calibrate.Meter(model).measure([{"x": np.ones((3, 4), np.float32)}], 128).answers == [{}]


def test_the_oldest_file_goes_first_and_a_disk_that_takes_none_is_no_error(calibrated, samples, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "MOST_FILES", 1)
    first, second = calibrated(), calibrated(7)
    assert kept_answers(first, samples) is None
    assert kept_answers(second, samples) is not None
    monkeypatch.setattr(cache, "user_cache_path", lambda _: tmp_path / "model.onnx")
    assert kept_answers(calibrated(), samples) is None
