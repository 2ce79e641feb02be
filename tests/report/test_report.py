import re
import shutil
from dataclasses import replace
from itertools import combinations

import pytest
from dvc.commands.metrics import DEFAULT_PRECISION
from dvc.compare import show_diff
from dvc.utils.diff import diff
from matplotlib.transforms import Bbox
from support.findings import GPU, by_itself, noisy, on_gpu, paced, spread_over, steady, unlabelled

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import MustPay
from enginery.engine.record import LayerTime
from enginery.report import tables
from enginery.report.evidence import Findings, gather
from enginery.report.figures import draw_figures
from enginery.report.line_fit import fit_line
from enginery.report.metrics import metrics
from enginery.report.summary import write_summary as summary_of
from enginery.report.verdict import failures_of, recommend, sentence
from enginery.report.where_time_goes import OVERSTATED
from enginery.speed.records import Pace


@pytest.fixture
def drawn(monkeypatch):
    """The static pictures that were drawn: latency, throughput, trade-off."""
    pictures = []
    monkeypatch.setattr("enginery.report.figures.plt.close", pictures.append)
    return pictures


def write_summary(found, **must_pay):
    return summary_of(found, failures_of(found, must_pay))


def test_the_fastest_is_recommended(findings, evidence):
    slow, fast = evidence("fp32", (1.5, 1.4, 1.6)), evidence("int8", (4.0, 3.8, 4.2))
    assert recommend(findings(slow, fast)) is fast


def test_of_those_that_are_as_fast_the_most_accurate_is_recommended(findings, evidence):
    exact = evidence("bf16", (4.1, 3.9, 4.3), relative=0.004)
    fast = evidence("int8", (4.2, 4.0, 4.4), relative=0.02)
    most_exact_but_slow = evidence("fp32", (1.0, 0.9, 1.1), relative=1e-6)
    assert recommend(findings(most_exact_but_slow, exact, fast)) is exact


def test_what_failed_is_not_recommended(findings, evidence):
    fine, failed = evidence("fp32", (1.5, 1.4, 1.6)), evidence("int8", (4.0, 3.8, 4.2), broken=("cosine 0 is below 1",))
    assert recommend(findings(fine, failed)) is fine


def test_what_is_not_what_it_says_is_not_recommended(findings, evidence):
    """A CPU without fp16 units runs fp16 as fp32: it may look faster, but that is noise."""
    fine = evidence("fp32", (1.5, 1.4, 1.6))
    disguised = evidence("fp16", (4.0, 3.8, 4.2), executed="fp32")
    assert not disguised.is_what_it_says
    assert recommend(findings(fine, disguised)) is fine


def test_where_none_passed_none_is_recommended(findings, evidence):
    nothing = findings(evidence("fp32", broken=("a",)), evidence("int8", broken=("b",)))
    assert recommend(nothing) is None
    assert sentence(nothing) == "**Ship none of them:** no precision stayed within its thresholds."
    assert metrics(nothing)["recommended"] == "none"


def test_the_sentence_says_how_fast_and_how_right(findings, evidence):
    text = sentence(findings(evidence("int8", (4.0, 3.85, 4.2))))
    assert text == (
        "**Ship int8:** 4.00 times as fast as PyTorch eager at batch 8 (3.85 to 4.20 within this run), "
        "accuracy 97.53% where PyTorch has 98.76%, and the same answer as PyTorch for 96.88% of 512 images. "
        "The engine takes 12.3 MB."
    )


def test_a_tiny_engine_has_a_size(findings, evidence):
    tiny = evidence("int8")
    tiny = replace(tiny, engine=tiny.engine.model_copy(update={"bytes": 12_340, "onnx_bytes": 45_600}))
    assert " The engine takes 12.3 kB." in sentence(findings(tiny))
    assert tables.memory_table(findings(tiny)).loc["int8"].tolist()[:2] == ["45.6 kB", "12.3 kB"]


def test_figures_are_quoted_at_the_tuned_batch_if_it_was_raced_and_else_at_the_largest(findings, evidence):
    assert findings(evidence("int8")).tuned_batch == 8
    assert findings(evidence("int8", batches=(1, 4, 2))).tuned_batch == 4


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


def test_dvc_shows_that_the_least_error_has_changed(findings, evidence, capsys):
    runs = [metrics(findings(evidence("fp32", relative=error))) for error in (3.52e-07, 4.71e-07)]
    changed = diff(*({"metrics.json": {"data": run}} for run in runs))
    show_diff(changed, "Metric", precision=DEFAULT_PRECISION, round_digits=True)
    (told,) = (line.split() for line in capsys.readouterr().out.splitlines() if "relative_error" in line)
    assert told == ["metrics.json", "fp32.relative_error_ppm", "0.352", "0.471", "0.119"]


def test_batch_sizes_sort_as_text_as_they_do_as_numbers(findings, evidence):
    batches = (1, 4, 16, 128)
    names = [name for name in metrics(findings(evidence("int8", batches=batches)))["int8"] if name.startswith("batch")]
    assert sorted(names) == names == ["batch_001", "batch_004", "batch_016", "batch_128"]


def test_without_labels_accuracy_is_left_out_and_not_zero(findings, evidence, tmp_path):
    found = findings(unlabelled(evidence("fp32", (1.0, 0.9, 1.1))), unlabelled(evidence("int8", (4.0, 3.9, 4.1))))
    assert "accuracy not measured (no labels or no scores), and the same answer as PyTorch for 96.88%" in sentence(
        found
    )
    got = metrics(found)
    assert "pytorch" not in got
    assert not [name for name in got["int8"] if name.startswith("accuracy")]
    assert tables.accuracy_table(found).loc["int8", ["accuracy", "drop"]].tolist() == ["-", "-"]
    assert tables.spot_table(found).loc["int8"].tolist() == ["-, 1.5e-07"]
    assert "0.00%" not in write_summary(found)
    draw_figures(found, {}, tmp_path)
    assert (tmp_path / "tradeoff.png").stat().st_size > 10_000


def test_the_summary_holds_a_table_for_every_question(findings, evidence):
    page = write_summary(findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2))))
    for heading in ("Accuracy", "Executed precision", "Latency", "Throughput", "Memory and size"):
        assert f"\n## {heading}\n" in page
    # The engine's latency, its ratio, accuracy, cosine and executed layers.
    for figure in ("2.00 / 2.20 / 3.00", "4.00 (3.80 to 4.20)", "97.53%", "0.998765", "2 int8, 1 fp32"):
        assert figure in page


def test_the_summary_warns_of_what_ran_as_something_else(findings, evidence):
    page = write_summary(findings(evidence("fp16", executed="fp32")))
    assert "- **fp16 ran as fp32:** OpenVINO executed none of it in fp16 here." in page


def test_the_summary_says_what_failed(findings, evidence):
    page = write_summary(findings(evidence("int8", broken=("cosine 0.9 is below 0.99", "at batch 1: too slow"))))
    assert "- **int8 failed:** cosine 0.9 is below 0.99; the precision is to blame." in page
    assert "- **int8 failed:** at batch 1: too slow; the precision is to blame." in page
    assert "FAILED" in page


@pytest.mark.parametrize(
    ("ratio", "told"),
    [((0.8, 0.75, 0.9), "1.25 times at batch 1, 1.25 times at batch 8."), ((0.99, 0.98, 0.995), None)],
)
def test_the_summary_says_where_pytorch_beats_the_best_engine(findings, evidence, ratio, told):
    page = write_summary(findings(evidence("int8", ratio), evidence("fp32", (0.5, 0.4, 0.6))))
    assert (f"- **PyTorch eager is faster than int8:** {told}" in page) == (told is not None)
    assert ("is faster than" in page) == (told is not None)


@pytest.mark.parametrize("other", ["cuda_graph", "cuda_graph+channels_last+fp16"])
def test_of_a_faster_pytorch_in_other_numbers_it_says_that_its_answers_were_not_measured(findings, evidence, other):
    said = write_summary(findings(raced_twice(evidence("int8", (0.8, 0.75, 0.9)), other)))
    (line,) = (line for line in said.splitlines() if line.startswith(f"- **PyTorch {other} is faster than int8:**"))
    assert line.endswith("How well it answers was not measured." if "fp16" in other else "1.25 times at batch 8.")


def test_the_summary_says_why_this_precision_unless_it_is_to_be_measured_again(findings, evidence):
    found = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.9, 4.1)))
    why = "It is the fastest of the 2 that may be shipped, 4.00 times as fast as fp32, the next."
    assert f"The engine takes 12.3 MB. {why}\n" in write_summary(found)
    assert "may be shipped" not in write_summary(findings(noisy(evidence("int8"), {"engine": {"spread": 0.31}})))


@pytest.mark.parametrize(("executed", "told"), [("tf32", True), ("fp32", False)])
def test_tf32_is_explained_where_it_ran(findings, evidence, executed, told):
    assert (
        "tf32 is how a GPU multiplies float32" in write_summary(findings(evidence("fp32", executed=executed)))
    ) == told


@pytest.mark.parametrize(
    ("disturbance", "why"),
    [
        ({"latency": {"eager": {"spread": 0.26}}}, "the middle half of PyTorch eager's calls spreads over 26%"),
        ({"latency": {"engine": {"outliers": 0.07}}}, "7% of the engine's calls took over twice as long as most"),
        (
            {"latency": {"eager": {"unrest": 0.09}}},
            "PyTorch eager's warm-up had not settled: its last two windows differed by 9%",
        ),
        ({"contention": {"others": 0.8}}, "other programs took 0.8 of 2 cores"),
        ({"contention": {"stolen": 0.1}}, "the host took 0.10 of 2 cores away"),
        ({"contention": {"throttled": 0.3}}, "the container's CPU quota held back 0.30 of 2 threads"),
        ({"pace": Pace(microseconds=None, rounds=40, set_aside=0)}, "the machine never kept to one pace"),
        ({"gpu": GPU.model_copy(update={"clock_low": 1500})}, "the GPU's clock moved between 1500 and 2520 MHz"),
        ({"gpu": GPU.model_copy(update={"throttled": {"power cap": 0.5}})}, "the GPU was throttled: power cap"),
    ],
    ids=["spread", "outliers", "warm-up", "others", "stolen", "quota", "pace", "clock", "throttled"],
)
def test_what_is_noisy_is_marked_with_its_reason_and_so_is_the_verdict(findings, evidence, disturbance, why):
    found = findings(evidence("fp32", (1.0, 0.98, 1.02)), noisy(evidence("int8", (4.0, 3.9, 4.1)), **disturbance))
    first, rest = write_summary(found).split("## Accuracy\n")
    said = [line for line in first.splitlines() if line.startswith("- **Noisy")]
    assert len(said) == 1
    assert re.fullmatch(
        rf"- \*\*Noisy, int8:\*\* 2 of 2 ratios: (at worst, )?{re.escape(why)}( at batch 1)?\.", said[0]
    )
    assert f"\n## What is noisy and why\n\n- **int8 at batch 1:** {why}.\n- **int8 at batch 8:**" in rest
    assert "An asterisk marks what is noisy, for the [reasons at the end](#what-is-noisy-and-why)." in rest
    assert "fp32 at batch" not in rest
    assert f"**Measure again:** {why}. The choice does not depend on it; `dvc repro --force" in sentence(found)
    assert tables.ratio_table(found).loc["int8 over eager", "batch 8"] == "4.00 (3.90 to 4.10) *"


def test_a_precision_timed_on_a_slower_machine_is_named_and_its_ratios_are_marked(findings, evidence):
    found = findings(paced(evidence("fp32", (1.0, 0.98, 1.02)), 7.5), paced(evidence("int8", (4.0, 3.9, 4.1)), 5.0))
    page = write_summary(found)
    slower = "the machine was 1.50 times as slow as for another precision."
    again = "`dvc repro --force --single-item benchmark@fp32` measures again."
    assert f"- **Noisy, fp32:** 2 of 2 ratios: {slower} Milliseconds are of that machine, too; {again}\n" in page
    assert f"- **fp32 at batch 8:** {slower}\n" in page
    assert "Noisy, int8" not in page
    assert tables.ratio_table(found).loc[["fp32 over eager", "int8 over eager"], "batch 8"].tolist() == [
        "1.00 (0.98 to 1.02) *",
        "4.00 (3.90 to 4.10)",
    ]


def raced_twice(entry, other="channels_last"):
    """The evidence with another baseline, as fast as the first."""
    benchmark = entry.benchmark
    again = [one.model_copy(update={"contender": other}) for one in benchmark.latencies if one.contender == "eager"]
    ratios = tuple(one.model_copy(update={"baseline": other}) for one in benchmark.ratios)
    changes = {"latencies": (*benchmark.latencies, *again), "ratios": benchmark.ratios + ratios}
    return replace(entry, benchmark=benchmark.model_copy(update=changes))


def noted(found):
    first, rest = write_summary(found).split("## Accuracy\n")
    return [line for line in first.splitlines() if line.startswith("- ")], rest


def test_however_much_is_noisy_each_precision_has_one_sentence_of_the_worst(findings, evidence):
    """The engine scatters at batch 1 alone, a baseline everywhere, but less."""
    wide = noisy(raced_twice(evidence("int8", (4.0, 3.9, 4.1))), latency={"eager": {"spread": 0.26}})
    calm = raced_twice(evidence("fp32", (1.0, 0.98, 1.02)))
    notes, rest = noted(findings(calm, spread_over(wide, 0.31, 1)))
    assert notes == [
        "- **Noisy, int8:** 3 of 4 ratios: at worst, the middle half of the engine's calls spreads over 31% at batch 1."
    ]
    engines = "the middle half of the engine's calls spreads over 31%"
    baselines = "the middle half of PyTorch eager's calls spreads over 26%"
    assert rest.endswith(
        f"\n## What is noisy and why\n\n- **int8 at batch 1:** 2 of 2 ratios: {engines}; {baselines}.\n"
        f"- **int8 at batch 8:** 1 of 2 ratios: {baselines}.\n"
    )


def test_noise_that_the_verdict_does_not_rest_on_is_one_sentence_however_many_have_it(findings, evidence):
    everywhere = [spread_over(evidence(name, (at, at, at)), 0.3, 1) for name, at in (("fp32", 1.0), ("int8", 4.0))]
    notes, rest = noted(findings(*everywhere))
    assert notes == [
        "- **Noisy at batch 1:** fp32, int8; the verdict is at batch 8 against PyTorch eager, and does not rest on it."
    ]
    assert "- **fp32 at batch 1:** the middle half of the engine's calls spreads over 30%.\n" in rest


def test_noise_of_the_quoted_speed_has_a_sentence_beside_that_of_other_noise(findings, evidence):
    quoted = spread_over(evidence("int8", (4.0, 4.0, 4.0)), 0.3, 8)
    notes, _ = noted(findings(spread_over(evidence("fp32", (1.0, 1.0, 1.0)), 0.3, 1), quoted))
    assert [note.partition(":**")[0] for note in notes] == ["- **Noisy, int8", "- **Noisy at batch 1"]


def test_noise_of_another_baseline_is_told_as_such(findings, evidence):
    entry = spread_over(raced_twice(evidence("int8", (4.0, 4.0, 4.0))), 0.3, 1, 8, contender="channels_last")
    notes, _ = noted(findings(entry))
    (told,) = (note.partition(":**")[0] for note in notes)
    assert told == "- **Noisy at batch 1, 8 (against other baselines)"


def test_what_is_furthest_beyond_its_limit_is_the_worst(findings, evidence):
    """7 % of outliers where 5 % may be is less than a spread of 30 % where 15 % may be, but 40 % is more."""

    def said(outliers):
        engine = {"spread": 0.3, "outliers": outliers}
        found = findings(noisy(evidence("int8", (4.0, 3.9, 4.1)), latency={"engine": engine}))
        return write_summary(found).partition("at worst, ")[2].partition(" at batch 1.")[0]

    assert said(0.07) == "the middle half of the engine's calls spreads over 30%"
    assert said(0.4) == "40% of the engine's calls took over twice as long as most"


@pytest.mark.parametrize(("speed", "doubted"), [(1.0, False), (3.0, True)])
def test_the_verdict_is_doubted_if_a_precision_could_win_on_an_equal_machine(findings, evidence, speed, doubted):
    slowed = paced(evidence("bf16", (speed, 0.99 * speed, 1.01 * speed)), 7.5)
    text = sentence(findings(slowed, paced(evidence("int8", (4.0, 3.9, 4.1)), 5.0)))
    assert ("the machine was 1.50 times as slow while bf16 was timed, which may be faster" in text) == doubted


def test_the_verdict_is_doubted_if_its_ratio_is_of_a_slower_machine(findings, evidence):
    slowed = paced(evidence("int8", (4.0, 3.9, 4.1)), 7.5)
    text = sentence(findings(paced(evidence("bf16", (1.0, 0.99, 1.01)), 5.0), slowed))
    assert "**Measure again:** the machine was 1.50 times as slow as for another precision. The choice" in text


def test_a_choice_that_depends_on_doubtful_timings_is_not_told_as_one(findings, evidence):
    close = evidence("bf16", (3.5, 3.45, 3.55)), noisy(evidence("int8", (4.0, 3.9, 4.1)), contention={"others": 0.8})
    text = sentence(findings(*close))
    assert text.startswith(
        "**Measure again:** int8 would be the one to ship, but the timings cannot be relied on: other"
    )
    assert "As measured, it is 4.00 times as fast" in text
    assert "Ship" not in text


def test_rounds_that_were_set_aside_are_counted(findings, evidence):
    page = write_summary(findings(paced(evidence("fp32"), 5.0, set_aside=7), paced(evidence("int8"), 5.0)))
    assert "7 of 80 rounds were set aside: the machine ran at another pace meanwhile." in page


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


@pytest.mark.parametrize(("ratio", "warned"), [((4.0, 3.85, 4.2), False), ((4.0, 3.0, 4.2), True)])
def test_a_wide_interval_is_noise(findings, evidence, ratio, warned):
    page = write_summary(findings(evidence("fp32", (1.0, 0.98, 1.02)), evidence("int8", ratio)))
    interval = "the interval of the ratio to PyTorch eager is 30% of it"
    wide = f"- **Noisy, int8:** 2 of 2 ratios: at worst, {interval} at batch 1."
    assert (wide in page) == warned
    assert ("Measure again" in page) == warned


def test_with_spare_cores_other_programs_do_not_disturb(findings, evidence):
    """Two threads on eight cores leave room for five others."""
    roomy = noisy(evidence("int8", (4.0, 3.9, 4.1)), contention={"cores": 8, "others": 5.0})
    assert "Noisy" not in write_summary(findings(roomy))


def test_a_precision_that_must_pay_fails_if_it_does_not_and_names_what_held_it_back(findings, evidence):
    found = findings(evidence("bf16", (3.0, 2.95, 3.05)), evidence("int8", (3.1, 3.05, 3.15)))
    rule = MustPay(over="bf16", times=1.2)
    why = (
        "1.03 times as fast as bf16 at batch 8, and must_pay asks for 1.2; "
        "1 of 3 compute layers ran in another: classifier"
    )
    assert failures_of(found, {"bf16": None, "int8": rule}) == {"bf16": (), "int8": (why,)}
    assert f"- **int8 failed:** {why}.\n" in write_summary(found, int8=rule)
    assert failures_of(found, {"int8": MustPay(over="bf16", times=1.0)})["int8"] == ()


def test_a_gate_that_is_red_by_noisy_ratios_says_so_and_what_the_other_really_was(findings, evidence):
    found = findings(evidence("bf16", (3.0, 2.0, 4.0), executed="fp32"), evidence("int8", (3.1, 3.05, 3.15)))
    (why,) = failures_of(found, {"int8": MustPay(over="bf16", times=1.2)})["int8"]
    assert why.startswith("1.03 times as fast as bf16, which ran as fp32, at batch 8")
    noise = "bf16: the interval of the ratio to PyTorch eager is 67% of it"
    assert why.endswith(f"This rests on noisy ratios ({noise}): measure again")


def test_over_a_precision_that_ran_as_another_it_must_be_faster_than_what_is_really_there(findings, evidence):
    slow, fast, int8 = evidence("bf16", (2.0, 1.95, 2.05), executed="fp32"), evidence("fp16", (4.0, 3.9, 4.1)), "int8"
    found = findings(slow, fast, evidence(int8, (3.0, 2.95, 3.05)))
    (why,) = failures_of(found, {int8: MustPay(over="bf16", times=1.1)})[int8]
    assert why.startswith("0.75 times as fast as fp16 (bf16 ran as fp32) at batch 8, and must_pay asks for 1.1")
    assert failures_of(found, {int8: MustPay(over="bf16", times=0.7)})[int8] == ()


def test_several_at_once_are_told_as_measured_and_marked_where_the_machine_was_another(findings, evidence):
    one = evidence("int8", (4.0, 3.8, 4.2))
    steady = one.latency(1).images_per_second
    flights = [each.model_copy(update={"images_per_second": steady * 0.95 * each.requests}) for each in one.flights(1)]
    one = replace(one, benchmark=one.benchmark.model_copy(update={"throughput": tuple(flights)}))
    assert [one.rate(each) for each in flights] == [steady, pytest.approx(1.9 * steady)]
    assert not one.strays(flights[1])
    slower = [each.model_copy(update={"images_per_second": each.images_per_second * 0.9}) for each in flights]
    one = replace(one, benchmark=one.benchmark.model_copy(update={"throughput": tuple(slower)}))
    assert one.strays(slower[1])
    few = slower[1].model_copy(update={"runs": 99})
    assert (tables.known_p99(few), tables.known_p99(slower[1])) == (None, 10.0)


def test_what_was_executed_as_something_else_does_not_pay(findings, evidence):
    found = findings(evidence("bf16", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.9, 4.1), executed="fp32"))
    assert failures_of(found, {"int8": MustPay(over="bf16", times=1.1)})["int8"] == (
        "none of it was executed in int8, so it cannot pay as must_pay asks",
    )


def test_broken_thresholds_and_missing_speed_are_told_together(findings, evidence):
    found = findings(evidence("bf16", (3.0, 2.95, 3.05)), evidence("int8", (1.0, 0.98, 1.02), broken=("cosine 0",)))
    first, second = failures_of(found, {"int8": MustPay(over="bf16", times=1.0)})["int8"]
    assert first == "cosine 0"
    assert second.startswith("0.33 times as fast as bf16")


def test_a_high_percentile_of_few_runs_is_not_shown(findings, evidence):
    few = evidence("int8")
    latencies = tuple(latency.model_copy(update={"runs": 99}) for latency in few.benchmark.latencies)
    few = replace(few, benchmark=few.benchmark.model_copy(update={"latencies": latencies}))
    assert tables.latency_table(findings(few)).loc["int8", "batch 1"] == "4.00 / 4.40 / -"
    assert "p99_ms" not in metrics(findings(few))["int8"]["batch_01"]


def test_tables_have_a_row_per_precision_and_a_column_per_batch(findings, evidence):
    both = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2)))
    latency = tables.latency_table(both)
    assert list(latency.index) == ["PyTorch eager, beside fp32", "fp32", "int8"]
    assert list(latency.columns) == ["batch 1", "batch 8"]
    assert latency.loc["int8", "batch 8"] == "16.00 / 17.60 / 24.00"
    throughput = tables.throughput_table(both)
    assert throughput.loc["PyTorch eager, one at a time", "batch 1"] == "125"
    assert throughput.loc["int8, one at a time", "batch 1"] == "500"
    assert throughput.loc["int8, 2 at once", "batch 8"] == "800 (1.60 times, 10.0 ms)"
    assert tables.executed_table(both).loc["int8"].tolist() == ["2 int8, 1 fp32", "67%", "classifier"]
    assert tables.memory_table(both).loc["int8"].tolist() == ["45.6 MB", "12.3 MB", "150", "800", "1.2"]
    assert tables.blame_table(both).loc["int8"].tolist() == [
        "1.0e-02",
        "1.0e-03",
        "1.0e-02",
        "98.00%",
        "97.53%",
        "nothing broke",
    ]
    assert tables.spot_table(both).loc["int8"].tolist() == ["98.44%, 1.5e-07"]


def taking(entry, contender, milliseconds):
    """The evidence with these medians, by batch size."""
    latencies = tuple(
        one.model_copy(update={"p50": milliseconds[one.batch]}) if one.contender == contender else one
        for one in entry.benchmark.latencies
    )
    return replace(entry, benchmark=entry.benchmark.model_copy(update={"latencies": latencies}))


def test_what_a_batch_costs_is_told_apart_from_what_an_image_costs(findings, evidence):
    entry = taking(evidence("int8", batches=(1, 4, 16)), "engine", {1: 1.0, 4: 2.5, 16: 8.5})
    found = findings(entry)
    table = tables.cost_table(found)
    assert list(table.columns) == ["fixed, ms", "for each image, ms", "off the line"]
    assert table.loc["int8"].tolist() == ["0.500", "0.500", "0.0%"]
    assert table.loc["PyTorch eager, beside int8"].tolist() == ["0.000", "8.000", "0.0%"]
    assert "What a batch costs, as p50 = fixed + images x each" in write_summary(found)


def test_costs_that_lie_on_no_line_are_not_told_as_one(findings, evidence):
    """Small batches wait for the launches, large ones for the arithmetic."""
    entry = taking(evidence("int8", batches=(1, 4, 16)), "eager", {1: 8.0, 4: 8.0, 16: 26.0})
    fixed, each, off = tables.cost_table(findings(entry)).loc["PyTorch eager, beside int8"]
    assert (fixed, each) == ("-", "-")
    assert off.endswith("%: does not fit a line")


def test_of_two_batch_sizes_no_line_is_drawn(findings, evidence):
    page = write_summary(findings(evidence("int8", batches=(1, 8))))
    assert "What a batch costs" not in page


def test_a_line_has_the_least_relative_errors_and_says_how_far_it_is_off():
    sizes, costs = [1, 10, 100], [1.1, 10.0, 100.0]
    line = fit_line(sizes, costs)
    assert line.at(1) == pytest.approx(1.1, rel=0.01)  # the least errors in milliseconds leave 4 %
    assert line.deviation == max(abs(cost / line.at(size) - 1) for size, cost in zip(sizes, costs, strict=True))


@pytest.mark.parametrize(
    ("costs", "fixed", "each"),
    [([1.0, 2.1, 4.5], 0, pytest.approx(1.06, 0.02)), ([4.0, 3.9, 3.7], pytest.approx(3.9, 0.02), 0)],
)
def test_no_part_of_a_line_is_below_zero(costs, fixed, each):
    line = fit_line([1, 2, 4], costs)
    assert (line.fixed, line.each) == (fixed, each)


def test_plots_get_a_row_per_point(findings, evidence):
    both = findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2)))
    latency = tables.latency_rows(both)
    assert latency[["precision", "batch", "p50"]].values.tolist() == [
        ["fp32", 1, 8.0],
        ["fp32", 8, 64.0],
        ["int8", 1, 2.0],
        ["int8", 8, 16.0],
    ]
    tradeoff = tables.tradeoff_rows(both, {}).set_index("precision").loc["int8"]
    assert (tradeoff.speedup, tradeoff.speedup_low, tradeoff.speedup_high) == (4.0, 3.8, 4.2)
    assert (tradeoff.accuracy, tradeoff.relative_error) == (0.9753, 0.01)


def test_the_plot_of_errors_gets_the_verdict_too(findings, evidence):
    found = findings(evidence("fp32"), evidence("fp16", executed="fp32"), evidence("int8", broken=("a",)))
    rows = tables.tradeoff_rows(found, failures_of(found, {}))
    assert rows["verdict"].tolist() == ["passed", "ran as fp32", "failed"]


def test_figures_are_drawn_for_every_precision(findings, evidence, tmp_path):
    every = [evidence(name) for name in ("fp32", "fp16", "bf16", "int8", "fp8")]
    draw_figures(findings(*every), {}, tmp_path)
    pictures = sorted(tmp_path.iterdir())
    assert [picture.name for picture in pictures] == ["latency.png", "throughput.png", "tradeoff.png"]
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_the_names_of_all_contenders_fit_into_the_picture(findings, evidence, tmp_path, drawn):
    entry = evidence("fp16")
    for launched in ("eager", "cuda_graph", "max_autotune"):
        entry = raced_twice(entry, f"{launched}+channels_last+fp16")
    draw_figures(findings(entry), {}, tmp_path)
    for figure in drawn[:2]:
        legend, whole = figure.axes[0].get_legend().get_window_extent(), figure.bbox
        assert len(figure.axes[0].get_legend().texts) == 5
        assert whole.x0 <= legend.x0 < legend.x1 <= whole.x1
        assert legend.y1 <= whole.y1
        assert figure.axes[0].get_window_extent().width > 0.8 * whole.width


def test_what_cannot_be_shipped_is_hollow_and_not_on_the_staircase(findings, evidence, tmp_path, drawn):
    found = findings(
        evidence("fp32", (1.0, 0.9, 1.1), relative=1e-6),
        evidence("fp16", (9.0, 8.9, 9.1), relative=1e-7, executed="fp32"),
        evidence("bf16", (0.9, 0.8, 1.0), relative=1e-5),  # slower than fp32, and further off
        evidence("int8", (4.0, 3.9, 4.1), relative=1e-2),
        evidence("fp8", (3.0, 2.9, 3.1), relative=1e-3),
    )
    draw_figures(found, {"fp8": ("it does not pay",)}, tmp_path)
    latency, _, tradeoff = (figure.axes[0] for figure in drawn)
    hollow = [bar.get_facecolor() == (1, 1, 1, 1) for bar in latency.patches[::2]]
    assert hollow == [False, False, True, False, False, False], "eager and the five precisions"
    stairs, *dots = (line for line in tradeoff.lines if line.get_marker() != "|")
    assert stairs.get_xydata().tolist() == [[4.0, 1e-2], [1.0, 1e-6]]
    assert stairs.get_drawstyle() == "steps-post", "at a speed between the two there is only the faster one's error"
    assert [dot.get_markerfacecolor() == "white" for dot in dots] == [False, True, False, False, True]


def test_no_name_in_the_picture_lies_on_a_dot_or_a_name(crowded, tmp_path, drawn):
    draw_figures(crowded, {}, tmp_path)
    axes = drawn[2].axes[0]
    names = [text.get_window_extent() for text in axes.texts]
    rows = tables.tradeoff_rows(crowded, {})
    middles = axes.transData.transform(rows[["speedup", "relative_error"]])
    radius = axes.lines[1].get_markersize() / 2 * drawn[2].dpi / 72
    dots = [Bbox.from_bounds(x - radius, y - radius, 2 * radius, 2 * radius) for x, y in middles]
    assert len(names) == len(dots) == 5
    assert [name for name in names if name.count_overlaps(dots)] == []
    assert [first for first, second in combinations(names, 2) if first.overlaps(second)] == []


def test_on_a_gpu_the_summary_says_what_was_timed_and_in_which_state(gpu, evidence):
    page = write_summary(Findings(gpu, (on_gpu(evidence("fp32", (1.0, 0.9, 1.1))), on_gpu(evidence("int8")))))
    assert "NVIDIA H200 (compute capability 9.0, driver 580.65, CUDA 13.0), TensorRT 11.4.0.106" in page
    assert "p50 / p90 / p99, the last of 100 calls or more, copies to the GPU and back included." in page
    assert "the kernels of fp32, int8 were replayed as one CUDA graph." in page
    plain = write_summary(Findings(gpu, (on_gpu(evidence("fp32"), cuda_graph=False),)))
    assert "the kernels were launched one by one." in plain


def test_on_a_cpu_the_summary_speaks_of_no_gpu(findings, evidence):
    page = write_summary(findings(evidence("int8")))
    for word in ("GPU", "CUDA", "clock"):
        assert word not in page


@pytest.mark.parametrize(
    ("alone", "told"),
    [
        ((0.85, 7.9), "0.850 ms at batch 1 (1.000 in the race)"),
        ((0.85, 4.0), "0.850 ms at batch 1 (1.000 in the race), 4.000 ms at batch 8 (8.000 in the race)"),
        ((0.98, 7.9), None),
    ],
    ids=["small batch", "both", "neither"],
)
def test_an_engine_that_company_slows_says_what_it_takes_by_itself(gpu, evidence, alone, told):
    int8 = by_itself(steady(on_gpu(evidence("int8", (4.0, 3.8, 4.2)))), batch1=alone[0], batch8=alone[1])
    found = Findings(gpu, (on_gpu(evidence("fp32", (1.0, 0.9, 1.1))), int8))
    said = re.search(r"- \*\*int8 is faster in a process of its own:\*\* (.*)\.", write_summary(found))
    expected = f"there its compute takes {told}. Its speed-ups are those of the race"
    assert (said[1] if said else None) == (expected if told else None)
    row = tables.compute_table(found).loc["int8, in a process of its own"]
    assert row.tolist() == [f"{milliseconds:.3f}" for milliseconds in alone]


@pytest.mark.parametrize("why", ["launched one by one", "on a GPU whose clock moved"])
def test_what_other_causes_slow_is_not_blamed_on_company(gpu, evidence, why):
    int8 = on_gpu(evidence("int8", (4.0, 3.8, 4.2)), cuda_graph=why != "launched one by one")
    int8 = by_itself(int8 if why == "on a GPU whose clock moved" else steady(int8), batch1=0.5, batch8=4.0)
    assert "in a process of its own:" not in write_summary(Findings(gpu, (int8,)))


def test_compute_alone_has_a_row_per_contender(gpu, evidence):
    table = tables.compute_table(Findings(gpu, (on_gpu(evidence("int8", (4.0, 3.8, 4.2))),)))
    assert table.loc["int8"].tolist() == ["1.000", "8.000"]
    assert table.loc["int8, launched one by one"].tolist() == ["3.000", "24.000"]
    assert table.loc["PyTorch eager, beside int8"].tolist() == ["4.000", "32.000"]
    assert tables.compute_table(Findings(gpu, (evidence("int8"),))).loc["int8"].tolist() == ["-", "-"]


@pytest.mark.parametrize(
    ("throttled", "said"),
    [({}, "never"), ({"power cap": 0.25, "thermal": 0.05}, "power cap 25% of the time, thermal 5% of the time")],
)
def test_the_state_of_the_gpu_has_a_row_per_engine(gpu, evidence, throttled, said):
    table = tables.gpu_table(Findings(gpu, (on_gpu(evidence("int8"), throttled=throttled),)))
    assert table.loc["int8"].tolist() == ["1200 / 1755 / 1980", 2619, "412 / 689", 61, said]


def test_memory_on_the_gpu_is_told_apart_and_left_out_where_it_is_hidden(gpu, evidence):
    both = Findings(gpu, (on_gpu(evidence("int8")),))
    assert tables.memory_table(both).loc["int8"].tolist()[2:4] == ["450 + 612 on the GPU", "900"]
    assert metrics(both)["int8"]["peak_GPU_MB"] == 612
    assert "peak_GPU_MB" not in metrics(Findings(gpu, (evidence("int8"),)))["int8"]


def test_what_could_not_be_inspected_is_said_and_may_be_recommended(findings, evidence):
    """An engine for RTX that was built without a GPU: nothing is known against it."""
    entry = evidence("int8")
    unknown = replace(entry, engine=entry.engine.model_copy(update={"layers": ()}))
    page = write_summary(findings(unknown))
    assert "- **What int8 executes is not known:** the engine was built where it cannot run." in page
    assert "int8 ran as" not in page
    assert tables.executed_table(findings(unknown)).loc["int8"].tolist() == ["not known", "-", "-"]
    assert recommend(findings(unknown)) is unknown


def traced(entry, **milliseconds):
    """The evidence with layers that took something else; further ones are reorders."""
    layers = {layer.name: layer for layer in entry.trace.layers}
    for name, taken in milliseconds.items():
        new = LayerTime(name=name, kind="Reorder", precision="int8", computes=False, milliseconds=0)
        layers[name] = layers.get(name, new).model_copy(update={"milliseconds": taken})
    return replace(entry, trace=entry.trace.model_copy(update={"layers": tuple(layers.values())}))


def told_of_layers(page):
    return page.split("\n## Where the time goes\n")[1].split("\n## ")[0]


def cost_of(precision, page):
    return told_of_layers(page).split(f"### What {precision} gained and lost, layer by layer\n")[1]


def test_the_slowest_layers_are_told_with_their_share_and_the_latency(findings, evidence):
    page = told_of_layers(write_summary(findings(evidence("fp32", (1.0, 0.9, 1.1)))))
    assert "Medians over 48 calls at batch 8" in page
    assert "60.00 ms in 4 layers; the latency is 64.00 ms. All of them, the slowest first:" in page
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| conv")]
    assert rows == [
        ["conv1", "30.000", "50.0%", "Convolution", "fp32"],
        ["conv2", "20.000", "33.3%", "Convolution", "fp32"],
    ]
    assert "What fp32 gained" not in page


def test_of_many_layers_ten_are_told(findings, evidence):
    many = traced(evidence("fp32"), **{f"node_{number}": 100.0 + number for number in range(60)})
    told = told_of_layers(write_summary(findings(many)))
    assert re.search(r"ms in 64 layers;.* The 10 slowest:\n", told)
    rows = [line for line in told.splitlines() if line.startswith("| node_")]
    assert [row.split()[1] for row in rows] == [f"node_{number}" for number in range(59, 49, -1)]


def test_a_sum_far_from_the_latency_is_not_to_be_trusted(findings, evidence):
    page = told_of_layers(write_summary(findings(traced(evidence("fp32", (1.0, 0.9, 1.1)), conv1=100.0))))
    assert f"130.00 ms in 4 layers; the latency is 64.00 ms. {OVERSTATED}" in page


def test_layers_that_lost_are_named_with_what_they_took_in_the_fastest_that_is_not_quantized(findings, evidence):
    fp32, bf16 = evidence("fp32", (1.0, 0.9, 1.1)), evidence("bf16", (2.0, 1.9, 2.1))
    cost = cost_of("int8", write_summary(findings(fp32, bf16, traced(evidence("int8", (4.0, 3.9, 4.1)), conv2=12.0))))
    assert "Compute layers that bf16, the fastest that is not quantized, has too: 3." in cost
    assert "They take 21.50 ms here and 29.00 ms there. Clearly slower here: 1, by 2.00 ms together:" in cost
    (row,) = [line for line in cost.splitlines() if line.startswith("| conv")]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("conv2", "12.000", "10.000", "2.000"),
        *("Convolution", "int8"),
    ]


def test_where_nothing_lost_one_sentence_says_so(findings, evidence):
    page = write_summary(findings(evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2))))
    assert cost_of("int8", page).strip() == (
        "Compute layers that fp32, the fastest that is not quantized, has too: 3. They take 14.50 ms here and 58.00 ms "
        "there. No layer became clearly slower."
    )


def test_layers_that_only_one_precision_has_are_told_with_their_time(findings, evidence):
    int8 = traced(evidence("int8", (4.0, 3.8, 4.2)), quantize=1.5, reorder_2=0.5)
    cost = cost_of("int8", write_summary(findings(traced(evidence("fp32", (1.0, 0.9, 1.1)), cast=0.25), int8)))
    assert (
        "Layers that only int8 has take 2.00 ms, 11.8% of it: 2 Reorder. Those that only fp32 has take 0.25 ms there."
    ) in cost


def test_layers_that_cannot_be_matched_are_not_compared(findings, evidence):
    fp32, int8 = evidence("fp32", (1.0, 0.9, 1.1)), evidence("int8", (4.0, 3.8, 4.2))

    def renamed(*names):
        given = [layer.model_copy(update={"name": new}) for layer, new in zip(int8.trace.layers, names, strict=True)]
        return replace(int8, trace=int8.trace.model_copy(update={"layers": tuple(given)}))

    some = cost_of("int8", write_summary(findings(fp32, renamed("__myl_1", "__myl_2", "classifier", "reorder"))))
    assert "Compute layers that fp32, the fastest that is not quantized, has too: 1." in some
    assert "Not compared, because no layer of fp32 has their names: __myl_1, __myl_2." in some
    none = cost_of("int8", write_summary(findings(fp32, renamed("__myl_1", "__myl_2", "__myl_3", "__myl_4"))))
    assert none.strip() == "No layer of it has a name that fp32 has as well: they cannot be compared."


def test_a_runtime_that_told_no_times_is_named(findings, evidence):
    fp32, int8 = evidence("fp32"), evidence("int8")
    untold = replace(int8, trace=int8.trace.model_copy(update={"layers": ()}))
    page = told_of_layers(write_summary(findings(fp32, untold)))
    assert "### int8\n\nOpenVINO told no times of its layers." in page
    assert page.endswith("There are no times of layers to compare.\n")
    alone = told_of_layers(write_summary(findings(int8)))
    assert alone.endswith("There are no times of layers to compare.\n")


def test_layers_of_which_nothing_is_known_but_their_time_are_told(findings, evidence):
    """Of an engine that could not be inspected, the profiler tells names all the same."""

    def unknown(entry):
        what = {"kind": "unknown", "precision": "unknown", "computes": False}
        layers = tuple(layer.model_copy(update=what) for layer in entry.trace.layers)
        return replace(
            entry,
            engine=entry.engine.model_copy(update={"layers": ()}),
            trace=entry.trace.model_copy(update={"layers": layers}),
        )

    page = write_summary(findings(unknown(evidence("fp32", (1.0, 0.9, 1.1))), unknown(evidence("int8"))))
    assert "| conv1      | 30.000 | 50.0%   | unknown | unknown       |" in page
    assert "Layers that fp32, the fastest that is not quantized, has too: 4." in cost_of("int8", page)


@pytest.mark.parametrize(("precision", "tf32", "as_asked"), [("fp32", True, 1), ("fp32", False, 0), ("fp16", True, 0)])
def test_tf32_is_what_fp32_may_run_in_if_it_is_allowed(evidence, precision, tf32, as_asked):
    entry = evidence(precision, executed="tf32")
    engine = entry.engine.model_copy(
        update={"layers": entry.engine.layers[:2], "build": entry.engine.build.model_copy(update={"tf32": tf32})}
    )
    assert engine.executed == {"tf32": 2}
    assert engine.share_as_asked == as_asked
    assert replace(entry, engine=engine).is_what_it_says == bool(as_asked)


@pytest.fixture
def written(tmp_path, machine):
    """Evidence as the stages leave it."""

    def write(*entries):
        machine.write(tmp_path / "machine.json")
        for entry in entries:
            entry.engine.write(tmp_path / "engines" / entry.precision / "engine.json")
            entry.validation.write(tmp_path / "validation" / f"{entry.precision}.json")
            entry.benchmark.write(tmp_path / "benchmark" / entry.precision / "summary.json")
            entry.trace.write(tmp_path / "trace" / f"{entry.precision}.json")
        folders = [tmp_path / name for name in ("engines", "validation", "benchmark", "trace", "machine.json")]
        return lambda *precisions: gather(precisions, *folders)

    return write


def test_evidence_is_read_as_it_was_written(written, evidence, findings):
    fp32, int8 = evidence("fp32"), evidence("int8")
    assert written(fp32, int8)("fp32", "int8") == findings(fp32, int8)


def test_only_listed_precisions_are_read(written, evidence, findings, tmp_path):
    """A precision that was dropped leaves its files behind, and they may be broken."""
    fp32, dropped = evidence("fp32"), evidence("int8")
    read = written(fp32, dropped)
    (tmp_path / "validation" / "int8.json").write_text("broken")
    assert read("fp32") == findings(fp32)


def test_a_listed_precision_without_evidence_is_named(written, evidence, tmp_path):
    read = written(evidence("fp32"), evidence("int8"))
    shutil.rmtree(tmp_path / "engines" / "int8")
    with pytest.raises(EngineryError, match=r"engines/int8/engine\.json is missing: run `dvc repro`"):
        read("fp32", "int8")


def test_precisions_that_were_raced_differently_are_not_compared(written, evidence):
    read = written(evidence("fp32"), evidence("int8", batches=(1, 8, 16)))
    with pytest.raises(EngineryError, match="int8 was raced against other baselines or at other batch sizes than fp32"):
        read("fp32", "int8")
