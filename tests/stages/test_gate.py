from pathlib import Path

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.measure.records import Verdict
from enginewright.pipeline.report import gate

PRECISIONS = ("fp32", "fp16", "bf16", "int8")


def run_gate(folder, **failures):
    """Run the gate of a project whose precisions failed like this."""
    verdict = Verdict(recommended="fp32", failures={name: failures.get(name, ()) for name in PRECISIONS}, unsure={})
    verdict.write(folder / "verdict.json")
    gate(folder / "verdict.json", Path("summary.md"))


def test_the_gate_is_open_when_every_precision_passed(tmp_path, capsys):
    run_gate(tmp_path)
    assert capsys.readouterr().out == f"within their thresholds: {', '.join(PRECISIONS)}\n"


def test_the_gate_names_every_failure_and_the_report(tmp_path):
    with pytest.raises(EnginewrightError) as caught:
        run_gate(
            tmp_path,
            fp16=("cosine 0.9 is below 0.99",),
            int8=("accuracy drop 5% is above 1%", "3 outputs are NaN or infinite"),
        )
    message = str(caught.value)
    for part in ("fp16: cosine 0.9 is below 0.99", "int8: accuracy drop 5%", "3 outputs are NaN", "summary.md"):
        assert part in message
    assert "bf16" not in message
    assert "\n" not in message


def test_too_few_samples_are_named_where_one_must_be_sure(tmp_path):
    few = {"int8": ("accuracy drop 0.1% may be above 0.5%: about 770 samples would tell",)}
    Verdict(recommended=None, failures={"int8": ()}, unsure=few).write(tmp_path / "verdict.json")
    with pytest.raises(
        EnginewrightError,
        match=r"not enough samples to be sure, .*: int8: .* about 770 samples would tell\. The report",
    ):
        gate(tmp_path / "verdict.json", Path("summary.md"))


def test_a_verdict_that_is_missing_closes_the_gate(tmp_path):
    with pytest.raises(EnginewrightError, match=r"verdict\.json is missing"):
        gate(tmp_path / "verdict.json", Path("summary.md"))


def test_a_verdict_on_nothing_closes_the_gate(tmp_path):
    Verdict(recommended=None, failures={}, unsure={}).write(tmp_path / "verdict.json")
    with pytest.raises(EnginewrightError, match=r"verdict\.json judges no precision"):
        gate(tmp_path / "verdict.json", Path("summary.md"))
