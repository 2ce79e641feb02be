"""The report as Markdown."""

import re
from dataclasses import replace

import pytest
from support.findings import of_regression, on_gpu, paced, summary_of, unlabelled
from support.pages import Reader, page_of

from enginewright.engine.record import Layer
from enginewright.report import tables
from enginewright.report.metrics import metrics
from enginewright.report.page.pictures import trend_rows, write_pictures
from enginewright.report.verdict import recommend, sentence


def test_without_labels_accuracy_is_left_out_and_not_zero(findings, evidence, tmp_path):
    found = findings(unlabelled(evidence("fp32", (1.0, 0.9, 1.1))), unlabelled(evidence("int8", (4.0, 3.9, 4.1))))
    assert "accuracy not measured (no labels or no scores), and the same answer as PyTorch for 96.88%" in sentence(
        found
    )
    got = metrics(found)
    assert "pytorch" not in got
    assert not [name for name in got["int8"] if name.startswith("accuracy")]
    assert tables.accuracy_table(found).loc["int8", ["accuracy", "drop"]].tolist() == ["-", "-"]
    assert "0.00%" not in summary_of(found)
    write_pictures(found, trend_rows([]), tmp_path)
    assert "same answer as PyTorch, % of images" in (tmp_path / "tradeoff.svg").read_text()


def test_a_metric_that_is_a_plain_number_is_shown_as_one_with_the_interval_of_its_drop(findings, evidence):
    found = findings(*(of_regression(evidence(name)) for name in ("fp32", "int8")))
    assert "R² 0.9000 where PyTorch has 0.9100. The engine" in sentence(found)
    row = tables.accuracy_table(found).loc["int8"]
    assert row[["R²", "drop", "RMSE", "RMSE drop"]].tolist() == [
        "0.9000", "0.0100 (-0.0100 to 0.0300)", "13.0000", "0.5000 (-0.0100 to 0.0300)"
    ]  # fmt: skip
    got = metrics(found)
    assert got["pytorch"] == {"R²": 0.91, "RMSE": 12.5}
    assert {"R²": 0.9, "R²_drop": 0.01, "RMSE": 13.0, "RMSE_drop": 0.5}.items() <= got["int8"].items()
    assert "same_answer_%" not in got["int8"]
    page = Reader(page_of(found))
    assert "its R² is 0.9000 where PyTorch has 0.9100" in page.text
    assert "Higher is better: R²" in page.text


def test_the_drop_and_the_agreement_have_intervals(findings, evidence):
    row = tables.accuracy_table(findings(evidence("int8"))).loc["int8"]
    assert row["drop"] == "1.23% (0.23% to 2.23%)"
    assert row["top-1 agreement"] == "96.88% (95.88% to 97.88%)"


def test_the_summary_holds_a_table_for_every_question(findings, evidence):
    page = summary_of(findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2))))
    for heading in ("Accuracy", "Executed precision", "Latency", "Throughput", "Memory and size"):
        assert f"\n## {heading}\n" in page
    # The engine's latency, its ratio, accuracy, cosine and executed layers.
    row = r"\| int8 +\| 1 +\| 2\.00 +\| 2\.20 +\| 3\.00 +\|"
    assert re.search(row, page)
    for figure in ("4.00 (3.80 to 4.20)", "97.53%", "0.998765", "2 int8, 1 fp32"):
        assert figure in page


def test_the_summary_warns_of_a_precision_that_ran_as_another_type(findings, evidence):
    page = summary_of(findings(evidence("fp16", executed="fp32")))
    assert "- **fp16 ran as fp32:** OpenVINO executed none of it in fp16 here." in page


def test_the_summary_says_what_failed(findings, evidence):
    page = summary_of(findings(evidence("int8", broken=("cosine 0.9 is below 0.99", "at batch 1: too slow"))))
    assert "- **int8 failed:** cosine 0.9 is below 0.99; the precision is to blame." in page
    assert "- **int8 failed:** at batch 1: too slow; the precision is to blame." in page
    assert "FAILED" in page


def test_the_summary_gives_the_reason_for_a_choice(findings, evidence):
    found = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.9, 4.1)))
    why = "It is the fastest of the 2 precisions that may be shipped, 4.00 times (3.55 to 4.56) as fast as the next"
    assert f"The engine takes 12.3 MB. {why}, fp32.\n" in summary_of(found)


@pytest.mark.parametrize(("executed", "told"), [("tf32", True), ("fp32", False)])
def test_tf32_is_explained_where_it_ran(findings, evidence, executed, told):
    assert ("tf32 is how a GPU multiplies float32" in summary_of(findings(evidence("fp32", executed=executed)))) == told


def test_rounds_that_were_set_aside_are_counted(findings, evidence):
    page = summary_of(findings(paced(evidence("fp32"), 5.0, set_aside=7), paced(evidence("int8"), 5.0)))
    assert "7 of 80 rounds were set aside, because the machine ran at another pace." in page


def test_on_a_gpu_the_summary_says_what_was_timed_and_how_kernels_were_launched(gpu, findings, evidence):
    page = summary_of(
        replace(findings(on_gpu(evidence("fp32", (1.0, 0.9, 1.1))), on_gpu(evidence("int8"))), machine=gpu)
    )
    assert "NVIDIA H200 (compute capability 9.0, driver 580.65, CUDA 13.0), TensorRT 11.4.0.106" in page
    assert "p50 / p90 / p99, the last from 100 calls or more, copies to the GPU and back included." in page
    assert "the kernels of fp32, int8 were replayed as one CUDA graph." in page
    plain = summary_of(replace(findings(on_gpu(evidence("fp32"), cuda_graph=False)), machine=gpu))
    assert "the kernels were launched one by one." in plain


def test_on_a_cpu_the_summary_does_not_mention_a_gpu(findings, evidence):
    page = summary_of(findings(evidence("int8")))
    for word in ("GPU", "CUDA", "clock"):
        assert word not in page


def test_the_summary_says_which_precision_was_not_built_and_why(findings, evidence):
    found = findings(evidence("int8"), bf16="compute capability 7.5 does not have bf16; TensorRT cannot build it")
    page = summary_of(found)
    assert "- **bf16 was not built:** compute capability 7.5 does not have bf16; TensorRT cannot build it.\n" in page
    assert recommend(found).precision == "int8"


HIDDEN = Layer(name="conv1", kind="gemm", precision="unknown", computes=True)


@pytest.mark.parametrize(
    ("layers", "why", "row"),
    [
        ((), "the engine was built where it cannot run.", ["not known", "-", "-"]),
        ((HIDDEN,), "OpenVINO does not tell the types of 1 of 1 compute layers.", ["1 unknown", "-", "-"]),
    ],
    ids=["built without a GPU", "hidden by the inspector"],
)
def test_an_engine_with_unknown_layers_is_noted_and_may_be_recommended(findings, evidence, layers, why, row):
    """Nothing is known against it."""
    entry = evidence("int8")
    unknown = replace(entry, engine=entry.engine.model_copy(update={"layers": layers}))
    page = summary_of(findings(unknown))
    assert f"- **What int8 executes is not known:** {why}" in page
    assert "int8 ran as" not in page
    assert tables.executed_table(findings(unknown)).loc["int8"].tolist() == row
    assert recommend(findings(unknown)) is unknown
