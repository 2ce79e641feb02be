import shutil
from pathlib import Path

import pytest

from enginery.core.errors import EngineryError
from enginery.core.records import Errors, Validation
from stages.gate import gate

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
PERFECT = Errors(max_abs=0, mean_abs=0, relative=0, cosine=1, worst_cosine=1, top1_agreement=1, nonfinite=0)


@pytest.fixture
def verdicts(tmp_path, monkeypatch):
    """A project whose precisions broke the given thresholds."""
    shutil.copyfile(Path(__file__).parents[1] / "params.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)

    def write(**broken):
        for precision in PRECISIONS:
            Validation(
                precision=precision,
                samples=4,
                reference_accuracy=1,
                graph_accuracy=1,
                engine_accuracy=1,
                accuracy_drop=0,
                engine_against_pytorch=PERFECT,
                graph_against_pytorch=PERFECT,
                engine_against_graph=PERFECT,
                spots=(),
                loss_comes_from="precision",
                broken=broken.get(precision, ()),
            ).write(tmp_path / "validation" / f"{precision}.json")

    return write


def run_gate():
    gate(Path("validation"), Path("summary.md"))


def test_the_gate_is_open_when_every_precision_passed(verdicts, capsys):
    verdicts()
    run_gate()
    assert capsys.readouterr().out == "all 4 precisions stayed within their thresholds\n"


def test_the_gate_names_every_broken_threshold_and_the_report(verdicts):
    verdicts(fp16=("cosine 0.9 is below 0.99",), int8=("accuracy drop 5% is above 1%", "3 outputs are NaN or infinite"))
    with pytest.raises(EngineryError) as caught:
        run_gate()
    message = str(caught.value)
    for part in ("fp16: cosine 0.9 is below 0.99", "int8: accuracy drop 5%", "3 outputs are NaN", "summary.md"):
        assert part in message
    assert "bf16" not in message
    assert "\n" not in message


def test_a_precision_that_is_no_longer_listed_does_not_close_the_gate(verdicts):
    verdicts()
    Path("validation/fp8.json").write_text("left over")
    run_gate()


def test_a_verdict_that_is_missing_closes_the_gate(verdicts):
    verdicts()
    Path("validation/int8.json").unlink()
    with pytest.raises(EngineryError, match=r"validation/int8\.json is missing"):
        run_gate()
