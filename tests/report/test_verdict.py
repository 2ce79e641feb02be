"""Which precision the report recommends, and with which doubts."""

from dataclasses import replace

import pytest
from support.findings import noisy, paced

from enginery.report import tables
from enginery.report.metrics import metrics
from enginery.report.verdict import recommend, sentence


@pytest.mark.parametrize(
    ("precisions", "chosen"),
    [
        ({"fp32": {"ratio": (1.5, 1.4, 1.6)}, "int8": {"ratio": (4.0, 3.8, 4.2)}}, "int8"),
        (
            {
                "fp32": {"ratio": (1.0, 0.9, 1.1), "relative": 1e-6},
                "bf16": {"ratio": (4.1, 3.9, 4.3), "relative": 0.004},
                "int8": {"ratio": (4.2, 4.0, 4.4), "relative": 0.02},
            },
            "bf16",
        ),
        ({"fp32": {"ratio": (1.5, 1.4, 1.6)}, "int8": {"ratio": (4.0, 3.8, 4.2), "broken": ("cosine 0",)}}, "fp32"),
        ({"fp32": {"ratio": (1.5, 1.4, 1.6)}, "fp16": {"ratio": (4.0, 3.8, 4.2), "executed": "fp32"}}, "fp32"),
    ],
    ids=["the fastest", "of those as fast the closest", "not one that failed", "not one that ran as another type"],
)
def test_the_fastest_precision_that_may_be_shipped_is_recommended(findings, evidence, precisions, chosen):
    """A CPU without fp16 units runs fp16 as fp32: that it may look faster is noise."""
    found = findings(*(evidence(name, **about) for name, about in precisions.items()))
    assert recommend(found).precision == chosen


def test_where_none_passed_none_is_recommended(findings, evidence):
    nothing = findings(evidence("fp32", broken=("a",)), evidence("int8", broken=("b",)))
    assert recommend(nothing) is None
    assert sentence(nothing) == "**Ship none of them:** no precision stayed within its thresholds."
    assert metrics(nothing)["recommended"] == "none"


def test_the_sentence_gives_speed_accuracy_and_size(findings, evidence):
    text = sentence(findings(evidence("int8", (4.0, 3.85, 4.2))))
    assert text == (
        "**Ship int8:** 4.00 times as fast as PyTorch eager at batch 8 (3.85 to 4.20 within this run), "
        "accuracy 97.53% where PyTorch has 98.76%, and the same answer as PyTorch for 96.88% of 512 images. "
        "The engine takes 12.3 MB."
    )


def test_speeds_are_quoted_at_the_tuned_batch_or_else_at_the_largest_raced(findings, evidence):
    assert findings(evidence("int8")).tuned_batch == 8
    assert findings(evidence("int8", batches=(1, 4, 2))).tuned_batch == 4


@pytest.mark.parametrize(("speed", "doubted"), [(1.0, False), (3.0, True)])
def test_the_verdict_is_doubted_if_a_precision_could_win_on_an_equal_machine(findings, evidence, speed, doubted):
    slowed = paced(evidence("bf16", (speed, 0.99 * speed, 1.01 * speed)), 7.5)
    text = sentence(findings(slowed, paced(evidence("int8", (4.0, 3.9, 4.1)), 5.0)))
    assert ("the machine was 1.50 times as slow while bf16 was timed, which may be faster" in text) == doubted


def test_the_verdict_is_doubted_if_its_ratio_is_of_a_slower_machine(findings, evidence):
    slowed = paced(evidence("int8", (4.0, 3.9, 4.1)), 7.5)
    text = sentence(findings(paced(evidence("bf16", (1.0, 0.99, 1.01)), 5.0), slowed))
    assert "**Measure again:** the machine was 1.50 times as slow as for another precision. The choice" in text


def test_a_choice_that_depends_on_doubtful_timings_is_not_recommended(findings, evidence):
    close = evidence("bf16", (3.5, 3.45, 3.55)), noisy(evidence("int8", (4.0, 3.9, 4.1)), contention={"others": 0.8})
    text = sentence(findings(*close))
    assert text.startswith(
        "**Measure again:** int8 would be the one to ship, but the timings cannot be relied on: other"
    )
    assert "As measured, it is 4.00 times as fast" in text
    assert "Ship" not in text


def test_onnx_runtime_is_not_called_pytorch(findings, evidence):
    entry = evidence("int8")
    latencies = tuple(
        one.model_copy(update={"contender": one.contender.replace("eager", "onnxruntime")})
        for one in entry.benchmark.latencies
    )
    ratios = tuple(one.model_copy(update={"baseline": "onnxruntime"}) for one in entry.benchmark.ratios)
    benchmark = entry.benchmark.model_copy(update={"latencies": latencies, "ratios": ratios})
    found = findings(replace(entry, benchmark=benchmark))
    assert "2.00 times as fast as ONNX Runtime at batch 8" in sentence(found)
    assert "ONNX Runtime, one at a time" in tables.throughput_table(found).index
