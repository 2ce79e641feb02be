"""Notes on failures, faster baselines, isolated speed and noise."""

import re
from dataclasses import replace

import pytest
from support.findings import GPU, by_itself, noisy, on_gpu, paced, raced_twice, spread_over, steady, summary_of

from enginewright.core.params.model import BoxesParams
from enginewright.measure.records import MachinePace
from enginewright.measure.timing import broken_limits, machine_problems
from enginewright.report import tables
from enginewright.report.verdict import sentence


def noted(found):
    first, rest = summary_of(found).split("## Accuracy\n")
    return [line for line in first.splitlines() if line.startswith("- ")], rest


@pytest.mark.parametrize(
    ("ratio", "told"),
    [((0.8, 0.75, 0.9), "1.25 times at batch 1, 1.25 times at batch 8."), ((0.99, 0.98, 0.995), None)],
)
def test_a_note_says_where_pytorch_beats_the_best_engine(findings, evidence, ratio, told):
    page = summary_of(findings(evidence("int8", ratio), evidence("fp32", (0.5, 0.4, 0.6))))
    assert (f"- **PyTorch eager is faster than int8:** {told}" in page) == (told is not None)
    assert ("is faster than" in page) == (told is not None)


@pytest.mark.parametrize(
    ("int8", "layers"),
    [
        ((1.0, 0.9, 1.1), "These layers lost: conv1 (30.000 ms, 15.000 there), conv2 (20.000 ms, 10.000 there)"),
        ((1.98, 1.9, 2.1), None),
    ],
)
def test_a_note_says_where_int8_does_not_pay_and_which_layers_lost(findings, evidence, int8, layers):
    page = summary_of(findings(evidence("int8", int8), evidence("fp32", (1.5, 1.4, 1.6)), evidence("bf16")))
    assert ("does not pay" in page) == (layers is not None)
    if layers:
        said = f"- **int8 does not pay here:** bf16 is 2.00 times as fast at batch 8. {layers}"
        (note,) = (line for line in page.splitlines() if line.startswith(said))
        assert ". No mix was tried: the precision best does that. `precisions.int8.keep` keeps layers in float." in note


@pytest.mark.parametrize(
    "doubt", [None, "PyTorch is right for 12.5% of 64 images; with color bgr it would be right for 90%"]
)
def test_a_note_says_that_samples_may_be_otherwise(findings, evidence, doubt):
    made = evidence("int8")
    validation = made.validation.model_copy(update={"doubt": doubt})
    notes, _ = noted(findings(replace(made, validation=validation)))
    told = [note for note in notes if "may be otherwise" in note]
    assert told == ([f"- **Samples may be otherwise than the model knows them:** {doubt}."] if doubt else [])


@pytest.mark.parametrize(("nms", "told"), [("graph", True), ("outside", False)])
def test_a_note_says_that_an_engine_does_more_than_its_baselines(findings, evidence, nms, told):
    made = evidence("int8")
    engine = made.engine.model_copy(update={"boxes": BoxesParams(nms=nms)})
    assert ("**Boxes are chosen in the graph:**" in summary_of(findings(replace(made, engine=engine)))) == told


@pytest.mark.parametrize(("runtime", "told"), [("tensorrt_rtx", True), ("tensorrt", False)])
def test_the_report_says_what_int8_and_fp8_are_on_tensorrt_for_rtx(findings, evidence, runtime, told):
    found = findings(*(evidence(name, (2.0, 1.9, 2.1)) for name in ("fp16", "int8", "fp8")))
    page = summary_of(replace(found, machine=found.machine.model_copy(update={"runtime": runtime})))
    weights = "**int8 on TensorRT for RTX:** NVIDIA supports it there for the weights of matrix products alone."
    products = "**fp8 on TensorRT for RTX:** NVIDIA supports it there for matrix products alone."
    assert [line in page for line in (weights, products)] == [told, told]
    assert "fp16 on TensorRT for RTX" not in page


@pytest.mark.parametrize("other", ["cuda_graph", "cuda_graph+channels_last+fp16"])
def test_the_note_on_a_faster_pytorch_in_half_precision_warns_of_its_accuracy(findings, evidence, other):
    said = summary_of(findings(raced_twice(evidence("int8", (0.8, 0.75, 0.9)), other)))
    (line,) = (line for line in said.splitlines() if line.startswith(f"- **PyTorch {other} is faster than int8:**"))
    assert line.endswith("Its accuracy was not measured." if "fp16" in other else "1.25 times at batch 8.")


def ratios(found):
    """Return the speed beside the first baseline by contender and batch size."""
    return {row[:2]: row[6] for row in tables.latencies(found).itertuples(name=None)}


@pytest.mark.parametrize(
    ("disturbance", "why"),
    [
        ({"latency": {"eager": {"spread": 0.26}}}, "the middle half of PyTorch eager's calls spreads over 26%"),
        ({"latency": {"engine": {"outliers": 0.07}}}, "7% of the engine's calls took over twice as long as most"),
        (
            {"latency": {"eager": {"warm_up_drift": 0.09}}},
            "PyTorch eager's warm-up had not settled: its last two windows differed by 9%",
        ),
        ({"contention": {"others": 0.8}}, "other programs took 0.8 of 2 cores"),
        ({"contention": {"stolen": 0.1}}, "the host took 0.10 of 2 cores away"),
        ({"contention": {"throttled": 0.3}}, "the container's CPU quota held back 0.30 of 2 threads"),
        ({"pace": MachinePace(microseconds=None, rounds=40, set_aside=0)}, "the machine never kept to one pace"),
        ({"gpu": GPU.model_copy(update={"clock_low": 1500})}, "the GPU's clock moved between 1500 and 2520 MHz"),
        ({"gpu": GPU.model_copy(update={"throttled": {"power cap": 0.5}})}, "the GPU was throttled: power cap"),
    ],
    ids=["spread", "outliers", "warm-up", "others", "stolen", "quota", "pace", "clock", "throttled"],
)
def test_noise_is_marked_with_its_reason_in_the_tables_the_notes_and_the_verdict(findings, evidence, disturbance, why):
    found = findings(evidence("fp32", (1.0, 0.98, 1.02)), noisy(evidence("int8", (4.0, 3.9, 4.1)), **disturbance))
    first, rest = summary_of(found).split("## Accuracy\n")
    assert "- **Ratios to PyTorch eager are noisy:** those of int8, for the reasons listed below." in first
    assert f"\n## What is noisy and why\n\n- **int8 at batch 1:** {why}.\n- **int8 at batch 8:**" in rest
    assert "An asterisk marks a noisy ratio (see the [reasons at the end](#what-is-noisy-and-why))." in rest
    assert "fp32 at batch" not in rest
    assert sentence(found).startswith("**Ship int8:**")
    assert ratios(found)["int8", "8"] == "4.00 (3.90 to 4.10) *"


def test_a_clock_at_the_limit_is_steady(evidence):
    at_the_limit = GPU.model_copy(update={"clock_low": 1900, "clock_high": 2000})
    assert not machine_problems(noisy(evidence("int8", (4.0, 3.9, 4.1)), gpu=at_the_limit).benchmark)


def test_a_precision_timed_on_a_slower_machine_is_named_and_its_ratios_are_marked(findings, evidence):
    found = findings(paced(evidence("fp32", (1.0, 0.98, 1.02)), 7.5), paced(evidence("int8", (4.0, 3.9, 4.1)), 5.0))
    page = summary_of(found)
    slower = "the machine was 0.67 times as fast as for another precision."
    assert f"- **fp32 at batch 8:** {slower}\n" in page
    assert "int8 at batch" not in page
    assert ratios(found)["fp32", "8"] == "1.00 (0.98 to 1.02) *"
    assert ratios(found)["int8", "8"] == "4.00 (3.90 to 4.10)"


def test_noise_is_listed_by_batch_size(findings, evidence):
    """The engine scatters at batch 1 alone, a baseline everywhere, but less."""
    wide = noisy(raced_twice(evidence("int8", (4.0, 3.9, 4.1))), latency={"eager": {"spread": 0.26}})
    calm = raced_twice(evidence("fp32", (1.0, 0.98, 1.02)))
    engines = "the middle half of the engine's calls spreads over 31%"
    baselines = "the middle half of PyTorch eager's calls spreads over 26%"
    assert summary_of(findings(calm, spread_over(wide, 0.31, 1))).endswith(
        f"\n## What is noisy and why\n\n- **int8 at batch 1:** 2 of 2 ratios: {engines}; {baselines}.\n"
        f"- **int8 at batch 8:** 1 of 2 ratios: {baselines}.\n"
    )


@pytest.mark.parametrize(("ratio", "warned"), [((4.0, 3.85, 4.2), False), ((4.0, 3.0, 4.2), True)])
def test_a_wide_interval_is_noise(findings, evidence, ratio, warned):
    page = summary_of(findings(evidence("fp32", (1.0, 0.98, 1.02)), evidence("int8", ratio)))
    assert ("the interval of the ratio to PyTorch eager is 30% of it" in page) == warned
    assert ("are noisy" in page) == warned


def test_with_spare_cores_other_programs_do_not_disturb(findings, evidence):
    """Two threads on eight cores leave room for five others."""
    roomy = noisy(evidence("int8", (4.0, 3.9, 4.1)), contention={"cores": 8, "others": 5.0})
    assert "noisy:" not in summary_of(findings(roomy))


@pytest.mark.parametrize(
    ("alone", "told"),
    [
        ((0.85, 7.9), "0.850 ms at batch 1 (1.000 in the race)"),
        ((0.85, 4.0), "0.850 ms at batch 1 (1.000 in the race), 4.000 ms at batch 8 (8.000 in the race)"),
        ((0.98, 7.9), None),
    ],
    ids=["small batch", "both", "neither"],
)
def test_a_note_says_where_the_engine_is_faster_in_a_process_of_its_own(gpu, findings, evidence, alone, told):
    int8 = by_itself(steady(on_gpu(evidence("int8", (4.0, 3.8, 4.2)))), batch1=alone[0], batch8=alone[1])
    found = replace(findings(on_gpu(evidence("fp32", (1.0, 0.9, 1.1))), int8), machine=gpu)
    said = re.search(r"- \*\*int8 is faster in a process of its own:\*\* (.*)\.", summary_of(found))
    expected = f"its compute takes {told} there. The speed-ups in this report are those of the race"
    assert (said[1] if said else None) == (expected if told else None)
    row = tables.compute_table(found).loc["int8, in a process of its own"]
    assert row.tolist() == [f"{milliseconds:.3f}" for milliseconds in alone]


@pytest.mark.parametrize("why", ["launched one by one", "on a GPU whose clock moved"])
def test_there_is_no_such_note_if_something_else_can_explain_the_difference(gpu, findings, evidence, why):
    int8 = on_gpu(evidence("int8", (4.0, 3.8, 4.2)), cuda_graph=why != "launched one by one")
    int8 = by_itself(int8 if why == "on a GPU whose clock moved" else steady(int8), batch1=0.5, batch8=4.0)
    assert "in a process of its own:" not in summary_of(replace(findings(int8), machine=gpu))


def test_only_timings_of_the_ratios_own_batch_size_and_sides_make_it_noisy(evidence):
    calm = evidence("int8", (2.0, 1.95, 2.05), batches=(1, 8))
    (ratio,) = (each for each in calm.benchmark.ratios if each.batch == 8 and each.baseline == "eager")
    for entry, sentences in (
        (spread_over(calm, 0.9, 8), ["the middle half of the engine's calls spreads over 90%"]),
        (spread_over(calm, 0.9, 1), []),
        (spread_over(calm, 0.9, 8, contender="onnxruntime"), []),
    ):
        assert broken_limits(ratio, entry.benchmark) == sentences
