"""`enginewright.read_report` and `enginewright.compare`."""

import shutil

import pytest
from support.project import make_project

import enginewright


@pytest.fixture
def reports(built, tiny_onnx, machine, tmp_path):
    return make_project(tmp_path / "project", built, tiny_onnx, machine) / "reports"


def test_a_report_has_the_verdict_and_the_measurements(reports):
    report = enginewright.read_report(reports)
    assert (report.recommended, report.failures) == ("fp32", {"fp32": ()})
    assert report.precisions["fp32"].benchmark.ratios[0].median == 4.0
    assert report.precisions["fp32"].validation.main.engine == 0.984


def test_two_runs_are_compared(reports, tmp_path):
    shutil.copytree(reports, tmp_path / "later")
    changes = enginewright.compare(reports, tmp_path / "later")
    assert {change.figure for change in changes} >= {"accuracy", "times eager, batch 4"}
    assert not any(change.is_better_or_worse for change in changes)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(enginewright.EnginewrightError, match=r"holds no measurements\.json: give the reports folder"):
        enginewright.read_report(tmp_path)
