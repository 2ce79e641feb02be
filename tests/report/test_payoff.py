"""A precision must be as fast as must_pay asks."""

from dataclasses import replace

from support.findings import summary_of

from enginewright.core.params.precisions import MustPay
from enginewright.engine.record import Refusal
from enginewright.report.verdict import failures_of


def test_a_precision_slower_than_must_pay_asks_fails_and_names_the_layers_to_blame(findings, evidence):
    found = findings(evidence("bf16", (3.0, 2.95, 3.05)), evidence("int8", (3.1, 3.05, 3.15)))
    rule = MustPay(over="bf16", times=1.2)
    why = (
        "1.03 times as fast as bf16 at batch 8, but must_pay asks for 1.2; "
        "1 of 3 compute layers ran in another precision: classifier"
    )
    assert failures_of(found, {"bf16": None, "int8": rule}) == {"bf16": (), "int8": (why,)}
    assert f"- **int8 failed:** {why}.\n" in summary_of(found, int8=rule)
    assert failures_of(found, {"int8": MustPay(over="bf16", times=1.0)})["int8"] == ()


def test_a_precision_that_the_compiler_fails_on_fails(findings, evidence):
    found = findings(evidence("fp32"))
    refused = {
        "int8": Refusal(precision="int8", why="a fault", failed=True),
        "bf16": Refusal(precision="bf16", why="old"),
    }
    assert failures_of(replace(found, refused=refused), {}) == {"fp32": (), "int8": ("the compiler failed on it",)}


def test_a_failure_by_noisy_ratios_says_so_and_names_the_type_that_the_other_ran_as(findings, evidence):
    found = findings(evidence("bf16", (3.0, 2.0, 4.0), executed="fp32"), evidence("int8", (3.1, 3.05, 3.15)))
    (why,) = failures_of(found, {"int8": MustPay(over="bf16", times=1.2)})["int8"]
    assert why.startswith("1.03 times as fast as bf16, which ran as fp32, at batch 8")
    assert why.endswith("It may be up to 1.57 times: measure again")


def test_if_the_named_precision_ran_as_another_type_the_fastest_real_one_must_be_beaten(findings, evidence):
    slow, fast, int8 = evidence("bf16", (2.0, 1.95, 2.05), executed="fp32"), evidence("fp16", (4.0, 3.9, 4.1)), "int8"
    found = findings(slow, fast, evidence(int8, (3.0, 2.95, 3.05)))
    (why,) = failures_of(found, {int8: MustPay(over="bf16", times=1.1)})[int8]
    assert why.startswith("0.75 times as fast as fp16 (bf16 ran as fp32) at batch 8, but must_pay asks for 1.1")
    assert failures_of(found, {int8: MustPay(over="bf16", times=0.7)})[int8] == ()


def test_if_the_named_precision_was_not_built_the_fastest_real_one_must_be_beaten(findings, evidence):
    fp16, int8, rule = (
        evidence("fp16", (4.0, 3.9, 4.1)),
        evidence("int8", (3.0, 2.95, 3.05)),
        MustPay(over="bf16", times=1),
    )
    (why,) = failures_of(findings(fp16, int8, bf16="no"), {"int8": rule})["int8"]
    assert why.startswith("0.75 times as fast as fp16 (bf16 was not built) at batch 8, but must_pay asks for 1")
    (why,) = failures_of(findings(int8, bf16="no"), {"int8": rule})["int8"]
    assert why == "bf16 was not built, so nothing shows that it is as fast as must_pay asks"


def test_a_precision_that_was_not_built_fails_must_pay_and_nothing_else(findings, evidence):
    found = findings(evidence("bf16"), fp8="compute capability 8.6 does not have fp8")
    assert failures_of(found, {"fp8": None}) == {"bf16": ()}
    (why,) = failures_of(found, {"fp8": MustPay(over="bf16", times=1.1)})["fp8"]
    assert why == "none of it was executed in fp8, so it cannot be as fast as must_pay asks"


def test_a_precision_that_ran_as_another_type_fails_must_pay(findings, evidence):
    found = findings(evidence("bf16", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.9, 4.1), executed="fp32"))
    assert failures_of(found, {"int8": MustPay(over="bf16", times=1.1)})["int8"] == (
        "none of it was executed in int8, so it cannot be as fast as must_pay asks",
    )


def test_broken_thresholds_and_missing_speed_are_both_named(findings, evidence):
    found = findings(evidence("bf16", (3.0, 2.95, 3.05)), evidence("int8", (1.0, 0.98, 1.02), broken=("cosine 0",)))
    first, second = failures_of(found, {"int8": MustPay(over="bf16", times=1.0)})["int8"]
    assert first == "cosine 0"
    assert second.startswith("0.33 times as fast as bf16")
