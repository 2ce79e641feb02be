"""metrics.json: the figures that `dvc metrics diff` compares."""

import re

import pytest
from dvc.commands.metrics import DEFAULT_PRECISION
from dvc.compare import show_diff
from dvc.utils.diff import diff

from enginewright.report import tables
from enginewright.report.metrics import metrics


def test_metrics_hold_the_figures_of_every_precision(findings, evidence):
    fp32, int8 = evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.9, 4.2), relative=0.012345)
    got = metrics(findings(fp32, int8))
    assert list(got) == ["recommended", "pytorch", "fp32", "int8"]
    assert got["recommended"] == "int8"
    assert got["pytorch"] == {"accuracy_%": 98.76}
    rates = {"images_per_s": 500, "images_per_s_at_most": 800}  # one at a time, and with two requests in flight
    assert got["int8"] == {
        "passed": True,
        "accuracy_%": 97.53,
        "accuracy_drop_%": 1.23,
        "same_answer_%": 96.88,
        "cosine": 0.998765,
        "relative_error_ppm": 12300.0,
        "executed_as_asked_%": 66.67,
        "engine_MB": 12.3,
        "peak_MB": 150,
        "batch_01": {"p50_ms": 2.0, "p99_ms": 3.0, **rates, "speedup": 4.0},
        "batch_08": {"p50_ms": 16.0, "p99_ms": 24.0, **rates, "speedup": 4.0},
    }


def test_dvc_shows_a_change_of_the_smallest_error(findings, evidence, capsys):
    runs = [metrics(findings(evidence("fp32", relative=error))) for error in (3.52e-07, 4.71e-07)]
    changed = diff(*({"metrics.json": {"data": run}} for run in runs))
    show_diff(changed, "Metric", precision=DEFAULT_PRECISION, round_digits=True)
    (told,) = (line.split() for line in capsys.readouterr().out.splitlines() if "relative_error" in line)
    assert told == ["metrics.json", "fp32.relative_error_ppm", "0.352", "0.471", "0.119"]


def test_batch_sizes_sort_the_same_as_text_and_as_numbers(findings, evidence):
    batches = (1, 4, 16, 128)
    names = [name for name in metrics(findings(evidence("int8", batches=batches)))["int8"] if name.startswith("batch")]
    assert sorted(names) == names == ["batch_001", "batch_004", "batch_016", "batch_128"]


def test_the_first_table_has_the_figures_of_the_metrics(findings, evidence):
    found = findings(evidence("fp32", (1.0, 0.9, 1.1), relative=3e-7), evidence("int8", (4.0, 3.9, 4.2)))
    for name, row in tables.overview(found).iterrows():
        known = metrics(found)[name]
        figures = [float(re.match(r"[\d.]+(e[-+]\d+)?", text)[0]) for text in row[1:]]
        assert figures == pytest.approx(
            [
                known["batch_08"]["speedup"],
                known["batch_08"]["p50_ms"],
                known["accuracy_%"],
                known["same_answer_%"],
                known["relative_error_ppm"] / 1e6,
                known["engine_MB"],
                known["peak_MB"],
            ],
            rel=0.006,
        )
