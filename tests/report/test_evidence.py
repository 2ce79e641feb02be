"""Evidence, as it is read from the files of the stages."""

import shutil
from dataclasses import replace

import pytest
from support.findings import race_of

from enginewright.core.errors import EnginewrightError
from enginewright.engine.record import Refusal


def test_evidence_is_read_as_it_was_written(written, evidence, findings):
    fp32, int8 = evidence("fp32"), evidence("int8")
    assert written(fp32, int8)("fp32", "int8") == findings(fp32, int8)


def test_only_listed_precisions_are_read(written, evidence, findings, tmp_path):
    """A precision that was dropped leaves its files behind, and they may be broken."""
    fp32, dropped = evidence("fp32"), evidence("int8")
    read = written(fp32, dropped)
    (tmp_path / "validation" / "int8.json").write_text("broken")
    assert read("fp32") == replace(findings(fp32), race=race_of(fp32, dropped))


def test_a_race_without_one_of_the_engines_is_refused(written, evidence, tmp_path):
    read = written(evidence("fp32"), evidence("int8"))
    race_of(evidence("fp32")).write(tmp_path / "race.json")
    with pytest.raises(EnginewrightError, match=r"race\.json lacks int8; run `dvc repro` to race all engines"):
        read("fp32", "int8")


def test_a_precision_that_was_refused_stands_beside_the_others(written, evidence, findings, tmp_path):
    read, why = written(evidence("fp32")), "compute capability 7.5 does not have bf16"
    Refusal(precision="bf16", why=why).write(tmp_path / "engines" / "bf16" / "refused.json")
    assert read("fp32", "bf16") == findings(evidence("fp32"), bf16=why)
    with pytest.raises(EnginewrightError, match=f"no precision was built: {why}"):
        read("bf16")


def test_a_listed_precision_without_evidence_is_named(written, evidence, tmp_path):
    read = written(evidence("fp32"), evidence("int8"))
    shutil.rmtree(tmp_path / "engines" / "int8")
    with pytest.raises(EnginewrightError, match=r"engines/int8/engine\.json is missing: run `dvc repro`"):
        read("fp32", "int8")


def test_precisions_that_were_raced_differently_are_not_compared(written, evidence):
    read = written(evidence("fp32"), evidence("int8", batches=(1, 8, 16)))
    with pytest.raises(
        EnginewrightError, match="int8 was raced against other baselines or at other batch sizes than fp32"
    ):
        read("fp32", "int8")


@pytest.mark.parametrize(("precision", "tf32", "as_asked"), [("fp32", True, 1), ("fp32", False, 0), ("fp16", True, 0)])
def test_fp32_may_run_in_tf32_if_the_build_allows_it(evidence, precision, tf32, as_asked):
    entry = evidence(precision, executed="tf32")
    engine = entry.engine.model_copy(
        update={"layers": entry.engine.layers[:2], "build": entry.engine.build.model_copy(update={"tf32": tf32})}
    )
    assert engine.executed == {"tf32": 2}
    assert engine.share_as_asked == as_asked
    assert engine.runs_its_precision == bool(as_asked)
