import shutil
from dataclasses import replace

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import CalibrationParams
from enginewright.precision.calibration.cache import (
    provided_provenance,
    require_match,
    require_tensors,
    write_cache,
)
from enginewright.precision.calibration.calibrate import calibrate_graph
from enginewright.precision.dialect import dialect_of

CPU = dialect_of("openvino", "cpu", "avx512_vnni")
PARAMS = CalibrationParams(method="entropy", percentile=99.99, bins=2048, batch=8, file=None)
ALL = ["the model", "the calibration samples", "the preprocessing", "calibration.cache itself"]


class Calibrated:
    """A calibration and its sources, each of which a test can change."""

    def __init__(self, folder, onnx, samples):
        self.cache, self.model, self.samples = folder / "calibration.cache", folder / "model.onnx", samples
        shutil.copyfile(onnx, self.model)
        self.record = calibrate_graph(folder, samples, PARAMS, CPU, None, folder)

    def change(self, what):
        manifest = self.samples.manifest
        if what == "the model":
            self.model.write_bytes(self.model.read_bytes() + b"\0")
        elif what == "the calibration samples":
            reordered = manifest.model_copy(update={"samples": manifest.samples[::-1]})
            self.samples = replace(self.samples, manifest=reordered)
        elif what == "the preprocessing":
            other = manifest.preprocessing.model_copy(update={"interpolation": "nearest"})
            self.samples = replace(
                self.samples, manifest=self.samples.manifest.model_copy(update={"preprocessing": other})
            )
        else:
            write_cache({"input": 2.0}, self.cache)

    def require_match(self):
        require_match(self.record, self.cache, self.model, self.samples)


@pytest.fixture
def calibrated(tmp_path, tiny_onnx, samples):
    return Calibrated(tmp_path, tiny_onnx, samples)


def test_a_calibration_matches_what_it_was_made_from(calibrated):
    calibrated.require_match()
    assert calibrated.record.samples == 21
    assert calibrated.record.method == "entropy"
    assert calibrated.record.tools.keys() == {"numpy", "onnx", "onnxruntime"}


@pytest.mark.parametrize("what", ALL)
def test_the_one_thing_that_differs_is_named(calibrated, what):
    calibrated.change(what)
    with pytest.raises(EnginewrightError, match=r"was not made for what it is used for") as caught:
        calibrated.require_match()
    assert [name for name in ALL if f"{name} (recorded" in str(caught.value)] == [what]


def test_all_that_differs_is_named_at_once(tmp_path, calibrated):
    for what in ("the model", "the preprocessing"):
        calibrated.change(what)
    with pytest.raises(EnginewrightError) as caught:
        calibrated.require_match()
    assert [name for name in ALL if f"{name} (recorded" in str(caught.value)] == ["the model", "the preprocessing"]


@pytest.mark.parametrize("what", ["the model", "the calibration samples", "the preprocessing"])
def test_a_cache_from_elsewhere_says_nothing_about_its_origin(calibrated, what):
    params = PARAMS.model_copy(update={"file": "data/given.cache"})
    calibrated.record = provided_provenance(params, calibrated.cache, {"input": 1.0})
    calibrated.change(what)
    calibrated.require_match()
    assert (calibrated.record.source, calibrated.record.method) == ("data/given.cache", "given")


def test_a_cache_from_elsewhere_that_was_edited_since_is_refused(calibrated):
    calibrated.record = provided_provenance(PARAMS, calibrated.cache, {"input": 1.0})
    calibrated.change("calibration.cache itself")
    with pytest.raises(EnginewrightError, match=r"calibration\.cache itself"):
        calibrated.require_match()


@pytest.fixture
def given(tmp_path):
    """Write a calibration cache with these ranges, and return its record."""

    def describe(amax):
        write_cache(amax, tmp_path / "given.cache")
        params = PARAMS.model_copy(update={"file": "data/calibration/given.cache"})
        return provided_provenance(params, tmp_path / "given.cache", amax)

    return describe


def test_tensors_without_a_range_are_listed(given):
    with pytest.raises(
        EnginewrightError, match=r"given\.cache\) has no range for 2 of the 3 tensors .*: relu, pooled\. "
    ):
        require_tensors(given({"input": 1.0, "unused": 1.0}), ["input", "relu", "pooled"])


@pytest.mark.parametrize(("count", "named"), [(5, r"t0, t1, t2, t3, t4\. "), (9, r"t0, t1, t2, t3, t4, \.\.\.")])
def test_a_long_list_of_missing_tensors_is_cut(given, count, named):
    with pytest.raises(EnginewrightError, match=f"{count} of the {count} .*: {named}"):
        require_tensors(given({}), [f"t{number}" for number in range(count)])


def test_more_tensors_than_needed_are_welcome(given):
    require_tensors(given({"a": 1.0, "b": 1.0}), ["a"])
