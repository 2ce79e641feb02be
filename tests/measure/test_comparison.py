import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.engine.gpu import GpuConditions
from enginewright.measure.comparison import AS_OPENED, BETWEEN_RUNS, compare_runs, conclusion
from enginewright.measure.records import Outcome


def outcomes(changes):
    return {change.figure: change.outcome for change in changes}


def test_a_run_that_is_compared_with_itself_has_no_change(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0, 4.4), 0.99)
    assert set(outcomes(changes).values()) == {Outcome.NO_CHANGE}
    assert conclusion(changes) == Outcome.NO_CHANGE


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [(0.9, Outcome.REGRESSION), (0.99, Outcome.NO_CHANGE), (1.01, Outcome.NO_CHANGE), (1.1, Outcome.IMPROVEMENT)],
)
def test_a_change_of_the_ratio_to_pytorch_counts_by_its_size(run, factor, outcome):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * factor, 4.4 * factor), 0.99)
    assert outcomes(changes)["speed, all together"] == outcome
    assert conclusion(changes) == outcome


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.25])
def test_the_same_file_is_neither_slower_nor_faster_than_itself(run, factor):
    """Ratios alone said so in some of the project's own nights: the machine had changed, but not its pace."""

    def compared(now, **machine):
        faster = [factor * ratio for ratio in (13.0, 4.4)]
        return compare_runs(run(13.0, 4.4, files={"engine": "a"}), run(*faster, files={"engine": now}, **machine), 0.99)

    assert conclusion(compared("a", pace=7.4)) is Outcome.NOT_COMPARABLE
    same = [change for change in compared("a") if change.is_speed]
    assert {(change.outcome, change.again) for change in same} == {(Outcome.NOT_COMPARABLE, True)}
    assert "but the engine is the same file to the byte, so it is the machine: measure again" in same[0].why
    for other in (compared("b"), compared("a", driver="600"), compared("a", runtime_version="11.5")):
        assert conclusion(other) in (Outcome.REGRESSION, Outcome.IMPROVEMENT)


def test_all_batch_sizes_together_show_a_change_that_is_too_small_for_each(run):
    found = outcomes(compare_runs(run(13.0, 4.4), run(13.0 * 0.909, 4.4 * 0.909), 0.99))
    assert found["speed, all together"] == Outcome.REGRESSION
    assert found["times eager, batch 1"] == found["times eager, batch 8"] == Outcome.NO_CHANGE


def test_a_loss_at_one_batch_size_is_not_outweighed_by_a_gain_at_another(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * 0.9, 4.4 * 1.1), 0.99)
    assert outcomes(changes)["times eager, batch 1"] == Outcome.REGRESSION
    assert conclusion(changes) == Outcome.REGRESSION


def test_a_wider_interval_needs_a_larger_change(run):
    narrow, wide = (
        compare_runs(run(13.0, 4.4, interval=width), run(11.7, 3.96, interval=width), 0.99) for width in (0.01, 0.049)
    )
    assert (conclusion(narrow), conclusion(wide)) == (Outcome.REGRESSION, Outcome.NO_CHANGE)


def test_a_higher_confidence_needs_a_larger_change(run):
    one, other = run(13.0, 4.4), run(13.0 * 0.92, 4.4 * 0.92)
    assert conclusion(compare_runs(one, other, 0.9)) == Outcome.REGRESSION
    assert conclusion(compare_runs(one, other, 0.9999)) == Outcome.NO_CHANGE


def test_chance_alone_raises_an_alarm_as_rarely_as_the_confidence_says(run):
    """Runs differ by as much as their intervals say, and by what differs from run to run."""
    rng = np.random.default_rng(0)
    alarms, experiments, interval = 0, 1000, 0.02
    for _ in range(experiments):
        deviation = np.hypot(interval / 1.96, BETWEEN_RUNS)
        one, other = (
            run(*np.exp(rng.normal(0, deviation, 2) + rng.normal(0, AS_OPENED)), interval=interval) for _ in range(2)
        )
        alarms += conclusion(compare_runs(one, other, 0.9)) != Outcome.NO_CHANGE
    assert alarms / experiments < 0.1


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ({"pace": 7.4}, "the machine was 0.68 times as fast as it can be while one was timed: measure again"),
        ({"pace": None}, "the machine never kept to one pace while one was timed: measure again"),
        ({"others": 0.9}, "other programs took 0.9 of 2 cores while one was timed: measure again"),
        ({"threads": 1}, "2 threads and 1"),
        ({"device_name": "NVIDIA H200"}, "another device name: "),
        ({"runtime": "tensorrt"}, "another runtime: openvino and tensorrt"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_under_other_conditions_only_results_are_compared_and_no_speeds(run, conditions, why):
    changes = compare_runs(run(13.0, 4.4), run(9.0, 3.0, **conditions), 0.99)
    (speed,) = [change for change in changes if change.figure == "speed"]
    assert speed.outcome == Outcome.NOT_COMPARABLE
    assert speed.why.startswith(why)
    assert outcomes(changes)["accuracy"] == Outcome.NO_CHANGE
    assert conclusion(changes) == Outcome.NOT_COMPARABLE


@pytest.mark.parametrize("conditions", [{"pace": 7.4}, {"pace": None}, {"others": 0.9}], ids=str)
def test_a_slow_machine_does_not_hide_a_loss_that_it_cannot_cause(run, conditions):
    fast, lost, gained = run(13.0, 4.4), run(8.0, 2.5, **conditions), run(20.0, 7.0, **conditions)
    assert outcomes(compare_runs(fast, lost, 0.99))["speed, all together"] == Outcome.REGRESSION
    assert conclusion(compare_runs(fast, gained, 0.99)) == Outcome.NOT_COMPARABLE
    assert conclusion(compare_runs(fast, run(8.0, 2.5, threads=1), 0.99)) == Outcome.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("factor", "took", "outcome"),
    [
        (0.8, 0.8, Outcome.NOT_COMPARABLE),  # all of the change is PyTorch's
        (0.8, 0.88, Outcome.NOT_COMPARABLE),  # most of the change is PyTorch's
        (0.8, 0.92, Outcome.REGRESSION),  # most of the change is the engine's
        (0.8, 1.3, Outcome.REGRESSION),  # all of the change is the engine's, and the machine is slower too
        (0.9, 0.971, Outcome.REGRESSION),  # PyTorch's own change is too small to count
        (1.25, 1.25, Outcome.NOT_COMPARABLE),
        (1.25, 1.0, Outcome.IMPROVEMENT),
        (1.0, 1.3, Outcome.NO_CHANGE),  # both became slower alike
    ],
)
def test_a_change_of_the_baseline_is_no_change_of_the_engine(run, factor, took, outcome):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * factor, 4.4 * factor, took=(took, took)), 0.99)
    assert conclusion(changes) == outcome
    not_comparable = [change for change in changes if change.outcome == Outcome.NOT_COMPARABLE]
    assert all(change.again for change in not_comparable)
    assert {change.why for change in not_comparable} <= {
        f"the baseline itself was {1 / took:.2f} times as fast, most of the change: measure again"
    }


def test_a_change_of_the_baseline_at_one_batch_size_leaves_the_others_comparable(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * 0.8, 4.4, took=(0.8, 1.12)), 0.99)
    found = outcomes(changes)
    assert found["times eager, batch 1"] == Outcome.NOT_COMPARABLE
    assert found["speed, all together"] == found["times eager, batch 8"] == Outcome.NO_CHANGE


def test_a_loss_that_no_slow_machine_causes_is_a_regression_unless_it_is_the_baselines(run):
    before, lost = run(13.0, 4.4), (13.0 * 0.6, 4.4 * 0.6)
    assert conclusion(compare_runs(before, run(*lost, others=0.9), 0.99)) == Outcome.REGRESSION
    for conditions in ({"others": 0.9}, {}):
        after = run(*lost, took=(0.6, 0.6), **conditions)
        assert conclusion(compare_runs(before, after, 0.99)) == Outcome.NOT_COMPARABLE


def test_speeds_on_a_throttled_gpu_are_measured_again(run):
    steady = GpuConditions(
        samples=99,
        clock_low=1980,
        clock_median=1980,
        clock_high=1980,
        memory_clock=3201,
        power_median=310.0,
        power_high=500.0,
        temperature_high=55,
        throttled={},
    )
    before = run(13.0, 4.4, gpu=steady)
    assert conclusion(compare_runs(before, before, 0.99)) == Outcome.NO_CHANGE
    for problem in ({"throttled": {"power cap": 0.4}}, {"clock_low": 1500}):
        (speed, *_) = compare_runs(before, run(12.0, 4.0, gpu=steady.model_copy(update=problem)), 0.99)
        assert (speed.outcome, speed.again) == (Outcome.NOT_COMPARABLE, True)
        assert speed.why.startswith("the GPU")


def test_another_pytorch_is_another_baseline(run):
    (speed, *_) = compare_runs(run(13.0, 4.4), run(9.0, 3.0, pytorch="2.16.0"), 0.99)
    assert (speed.outcome, speed.why) == (Outcome.NOT_COMPARABLE, "another PyTorch: 2.15.0 and 2.16.0")
    assert not speed.again


def test_two_runs_on_a_slow_machine_are_not_compared_if_another_precision_saw_it_faster(run):
    """Ratios differ even between two runs on an equally slow machine."""
    slow, fast = run(13.0, 4.4, pace=7.4), run(9.0, 3.0, precision="fp32")
    before = slow.model_copy(update={"precisions": (*slow.precisions, *fast.precisions)})
    changes = compare_runs(before, slow, 0.99)
    assert [change.outcome for change in changes if change.figure == "speed"] == [Outcome.NOT_COMPARABLE]
    assert conclusion(compare_runs(slow, slow, 0.99)) == Outcome.NO_CHANGE


def test_runs_of_different_versions_are_compared(run):
    other = run(6.0, 2.0, runtime_version="9.9", driver="999", operating_system="Other 1")
    assert conclusion(compare_runs(run(13.0, 4.4), other, 0.99)) == Outcome.REGRESSION


def test_runs_of_different_tasks_are_not_compared_by_a_metric(run):
    before, after = run(13.0, 4.4), run(13.0, 4.4)
    (entry,) = after.precisions
    other = entry.model_copy(update={"validation": entry.validation.model_copy(update={"metric": "mIoU"})})
    changes = compare_runs(before, after.model_copy(update={"precisions": (other,)}), 0.99)
    assert [change.why for change in changes if change.figure == "mIoU"] == ["the earlier run was judged by accuracy"]


@pytest.mark.parametrize(
    ("change", "figure", "outcome"),
    [
        ({"accuracy": 0.90}, "accuracy", Outcome.REGRESSION),
        ({"accuracy": 0.926}, "accuracy", Outcome.REGRESSION),
        ({"accuracy": 0.932}, "accuracy", Outcome.NO_CHANGE),  # two intervals of 0.01 either side allow 0.022
        ({"relative": 0.02}, "relative error", Outcome.REGRESSION),
        ({"relative": 0.005}, "relative error", Outcome.IMPROVEMENT),
        ({"relative": 0.0105}, "relative error", Outcome.NO_CHANGE),
        ({"as_asked": 0.9}, "executed as asked", Outcome.REGRESSION),
    ],
)
def test_accuracy_errors_and_executed_layers_are_compared_too(run, change, figure, outcome):
    assert outcomes(compare_runs(run(13.0, 4.4), run(13.0, 4.4, **change), 0.99))[figure] == outcome


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [("a", "a", Outcome.REGRESSION), ("", "b", Outcome.REGRESSION), ("a", "b", Outcome.CHANGED)],
)
def test_fewer_layers_as_asked_are_no_regression_of_another_graph(run, before, after, outcome):
    """A stricter threshold lets the search spare more layers."""

    def asked_by(measurements, digest):
        (entry,) = measurements.precisions
        return measurements.model_copy(update={"precisions": (entry.model_copy(update={"asked_by": digest}),)})

    changes = compare_runs(asked_by(run(13.0, 4.4), before), asked_by(run(13.0, 4.4, as_asked=0.79), after), 0.99)
    assert outcomes(changes)["executed as asked"] == outcome
    assert conclusion(changes) == (Outcome.REGRESSION if outcome is Outcome.REGRESSION else Outcome.NO_CHANGE)


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [(0.2, 0.2, Outcome.NO_CHANGE), (0.2, 0.3, Outcome.REGRESSION), (0.3, 0.2, Outcome.IMPROVEMENT)],
)
def test_a_metric_of_which_less_is_better_is_compared_too(run, before, after, outcome):
    def errors_of(error):
        found = run(13.0, 4.4, accuracy=error)
        (entry,) = found.precisions
        results = tuple(each.model_copy(update={"higher_is_better": False}) for each in entry.validation.results)
        other = entry.model_copy(update={"validation": entry.validation.model_copy(update={"results": results})})
        return found.model_copy(update={"precisions": (other,)})

    assert outcomes(compare_runs(errors_of(before), errors_of(after), 0.99))["accuracy"] == outcome


@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ({}, {"samples": 256}, Outcome.NOT_COMPARABLE),
        ({"digest": "a"}, {"digest": "b"}, Outcome.NOT_COMPARABLE),
        ({"digest": "a"}, {"digest": "a"}, Outcome.NO_CHANGE),
        ({"digest": ""}, {"digest": "b"}, Outcome.NO_CHANGE),  # of an earlier version
        ({"digest": "a"}, {"digest": ""}, Outcome.NO_CHANGE),
    ],
)
def test_accuracies_on_other_sets_of_images_are_not_compared(run, before, after, outcome):
    changes = compare_runs(run(13.0, 4.4, **before), run(13.0, 4.4, **after), 0.99)
    assert outcomes(changes)["accuracy"] == outcome


def test_accuracies_that_were_not_measured_are_not_compared(run):
    labeled, bare = run(13.0, 4.4), run(13.0, 4.4, accuracy=None)
    assert "accuracy" not in outcomes(compare_runs(bare, bare, 0.99))
    for before, after, which in ((labeled, bare, "later"), (bare, labeled, "earlier")):
        changes = compare_runs(before, after, 0.99)
        (accuracy,) = [change for change in changes if change.figure == "accuracy"]
        assert accuracy.outcome == Outcome.NOT_COMPARABLE
        assert accuracy.why == f"the {which} run had no labels or no scores to measure it with"


def test_an_error_that_was_zero_can_grow(run):
    found = outcomes(compare_runs(run(13.0, 4.4, relative=0.0), run(13.0, 4.4, relative=0.02), 0.99))
    assert found["relative error"] == Outcome.REGRESSION


def test_a_regression_outweighs_figures_that_are_not_comparable(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0, 4.4, pace=7.4, accuracy=0.5), 0.99)
    assert conclusion(changes) == Outcome.REGRESSION


def test_runs_without_a_common_precision_are_refused(run):
    with pytest.raises(EnginewrightError, match="no precision in common"):
        compare_runs(run(1.0, 1.0), run(1.0, 1.0, precision="fp16"), 0.99)


def test_noisy_ratios_of_either_run_are_not_compared(run):
    for runs, again in (
        ((run(13, 4.4), run(9, 3.0, interval=0.06)), True),
        ((run(13, 4.4, interval=0.06), run(9, 3)), False),
    ):
        changes = [change for change in compare_runs(*runs, 0.99) if "times" in change.figure]
        assert [change.outcome for change in changes] == [Outcome.NOT_COMPARABLE] * 2
        assert {change.again for change in changes} == {again}
        assert all("timings scattered" in change.why for change in changes)


def test_noisy_calls_make_only_their_batch_size_incomparable(run):
    after = run(9.0, 4.4)
    (measured,) = after.precisions
    small, large = measured.benchmark.latencies
    noisy_small = small.model_copy(update={"spread": 0.26})
    benchmark = measured.benchmark.model_copy(update={"latencies": (noisy_small, large)})
    noisy = after.model_copy(update={"precisions": (measured.model_copy(update={"benchmark": benchmark}),)})
    found = outcomes(compare_runs(run(13.0, 4.4), noisy, 0.99))
    assert found["times eager, batch 1"] == Outcome.NOT_COMPARABLE
    assert found["times eager, batch 8"] == found["speed, all together"] == Outcome.NO_CHANGE
