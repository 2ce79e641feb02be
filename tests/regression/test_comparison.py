import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support.paths import ROOT

from enginery.core.errors import EngineryError
from enginery.engine.gpu.conditions import GpuConditions
from enginery.regression.comparison import Outcome, compare_runs, conclusion
from enginery.regression.measurements import read_measurements
from enginery.regression.speed_change import AS_OPENED, BETWEEN_RUNS


def outcomes(changes):
    return {change.figure: change.outcome for change in changes}


def test_nothing_changed(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0, 4.4), 0.99)
    assert set(outcomes(changes).values()) == {Outcome.NO_CHANGE}
    assert conclusion(changes) == Outcome.NO_CHANGE


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [(0.9, Outcome.REGRESSION), (0.99, Outcome.NO_CHANGE), (1.01, Outcome.NO_CHANGE), (1.1, Outcome.IMPROVEMENT)],
)
def test_a_change_of_the_ratio_to_pytorch_is_called_by_its_size(run, factor, outcome):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * factor, 4.4 * factor), 0.99)
    assert outcomes(changes)["speed, all together"] == outcome
    assert conclusion(changes) == outcome


@pytest.mark.parametrize("factor", [0.3, 0.8, 1.25])
def test_the_same_file_is_neither_slower_nor_faster_than_itself(run, factor):
    """Nights of the project's own did say so: the machine had changed in ways that no pace shows."""

    def judged(now, **machine):
        faster = [factor * ratio for ratio in (13.0, 4.4)]
        return compare_runs(run(13.0, 4.4, files={"engine": "a"}), run(*faster, files={"engine": now}, **machine), 0.99)

    assert conclusion(judged("a", pace=7.4)) is Outcome.NOT_COMPARABLE
    same = [change for change in judged("a") if change.is_speed]
    assert {(change.outcome, change.again) for change in same} == {(Outcome.NOT_COMPARABLE, True)}
    assert "but the engine is the same file to the byte, so it is the machine: measure again" in same[0].why
    for other in (judged("b"), judged("a", driver="600"), judged("a", runtime_version="11.5")):
        assert conclusion(other) in (Outcome.REGRESSION, Outcome.IMPROVEMENT)


def test_all_batch_sizes_together_tell_what_none_tells_alone(run):
    called = outcomes(compare_runs(run(13.0, 4.4), run(13.0 * 0.909, 4.4 * 0.909), 0.99))
    assert called["speed, all together"] == Outcome.REGRESSION
    assert called["times eager, batch 1"] == called["times eager, batch 8"] == Outcome.NO_CHANGE


def test_a_loss_at_one_batch_size_is_not_outweighed_by_a_gain_at_another(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * 0.9, 4.4 * 1.1), 0.99)
    assert outcomes(changes)["times eager, batch 1"] == Outcome.REGRESSION
    assert conclusion(changes) == Outcome.REGRESSION


def test_what_is_measured_coarsely_needs_a_larger_change(run):
    sharp, coarse = (
        compare_runs(run(13.0, 4.4, interval=width), run(11.7, 3.96, interval=width), 0.99) for width in (0.01, 0.049)
    )
    assert (conclusion(sharp), conclusion(coarse)) == (Outcome.REGRESSION, Outcome.NO_CHANGE)


def test_a_higher_confidence_needs_a_larger_change(run):
    one, other = run(13.0, 4.4), run(13.0 * 0.92, 4.4 * 0.92)
    assert conclusion(compare_runs(one, other, 0.9)) == Outcome.REGRESSION
    assert conclusion(compare_runs(one, other, 0.9999)) == Outcome.NO_CHANGE


def test_chance_alone_raises_an_alarm_as_rarely_as_is_said(run):
    """Runs that differ by what intervals say and what runs add; two precisions' worth of figures in each."""
    rng = np.random.default_rng(0)
    alarms, experiments, interval = 0, 1000, 0.02
    for _ in range(experiments):
        scatter = np.hypot(interval / 1.96, BETWEEN_RUNS)
        one, other = (
            run(*np.exp(rng.normal(0, scatter, 2) + rng.normal(0, AS_OPENED)), interval=interval) for _ in range(2)
        )
        alarms += conclusion(compare_runs(one, other, 0.9)) != Outcome.NO_CHANGE
    assert alarms / experiments < 0.1


@pytest.mark.parametrize(
    ("conditions", "why"),
    [
        ({"pace": 7.4}, "the machine was 1.48 times as slow while one was timed: measure again"),
        ({"pace": None}, "the machine never kept to one pace while one was timed: measure again"),
        ({"others": 0.9}, "other programs took 0.9 of 2 cores while one was timed: measure again"),
        ({"threads": 1}, "2 threads and 1"),
        ({"device_name": "NVIDIA H200"}, "another device name: "),
        ({"runtime": "tensorrt"}, "another runtime: openvino and tensorrt"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_speeds_under_other_conditions_are_not_compared_and_results_are(run, conditions, why):
    changes = compare_runs(run(13.0, 4.4), run(9.0, 3.0, **conditions), 0.99)
    (speed,) = [change for change in changes if change.figure == "speed"]
    assert speed.outcome == Outcome.NOT_COMPARABLE
    assert speed.why.startswith(why)
    assert outcomes(changes)["accuracy"] == Outcome.NO_CHANGE
    assert conclusion(changes) == Outcome.NOT_COMPARABLE


@pytest.mark.parametrize("conditions", [{"pace": 7.4}, {"pace": None}, {"others": 0.9}], ids=str)
def test_no_slow_machine_hides_a_loss_that_it_cannot_explain(run, conditions):
    fast, lost, gained = run(13.0, 4.4), run(8.0, 2.5, **conditions), run(20.0, 7.0, **conditions)
    assert outcomes(compare_runs(fast, lost, 0.99))["speed, all together"] == Outcome.REGRESSION
    assert conclusion(compare_runs(fast, gained, 0.99)) == Outcome.NOT_COMPARABLE
    assert conclusion(compare_runs(fast, run(8.0, 2.5, threads=1), 0.99)) == Outcome.NOT_COMPARABLE


@pytest.mark.parametrize(
    ("factor", "took", "outcome"),
    [
        (0.8, 0.8, Outcome.NOT_COMPARABLE),  # all of it is PyTorch's
        (0.8, 0.88, Outcome.NOT_COMPARABLE),  # and most of it
        (0.8, 0.92, Outcome.REGRESSION),  # most of it is the engine's
        (0.8, 1.3, Outcome.REGRESSION),  # all of it, on a machine that is slower besides
        (0.9, 0.971, Outcome.REGRESSION),  # what little PyTorch did may be the machine's, for both
        (1.25, 1.25, Outcome.NOT_COMPARABLE),
        (1.25, 1.0, Outcome.IMPROVEMENT),
        (1.0, 1.3, Outcome.NO_CHANGE),  # both alike
    ],
)
def test_what_the_baseline_did_is_not_held_against_the_engine(run, factor, took, outcome):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * factor, 4.4 * factor, took=(took, took)), 0.99)
    assert conclusion(changes) == outcome
    told = [change for change in changes if change.outcome == Outcome.NOT_COMPARABLE]
    assert all(change.again for change in told)
    assert {change.why for change in told} <= {
        f"the baseline itself took {took:.2f} times as long, most of the change: measure again"
    }


def test_what_the_baseline_did_at_one_batch_size_is_not_held_against_all(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0 * 0.8, 4.4, took=(0.8, 1.12)), 0.99)
    found = {change.figure: change.outcome for change in changes}
    assert found["times eager, batch 1"] == Outcome.NOT_COMPARABLE
    assert found["speed, all together"] == found["times eager, batch 8"] == Outcome.NO_CHANGE


def test_a_loss_that_no_machine_explains_is_one_unless_it_is_the_baselines(run):
    before, lost = run(13.0, 4.4), (13.0 * 0.6, 4.4 * 0.6)
    assert conclusion(compare_runs(before, run(*lost, others=0.9), 0.99)) == Outcome.REGRESSION
    for conditions in ({"others": 0.9}, {}):
        after = run(*lost, took=(0.6, 0.6), **conditions)
        assert conclusion(compare_runs(before, after, 0.99)) == Outcome.NOT_COMPARABLE


def test_what_a_throttled_gpu_timed_is_measured_again(run):
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
    for amiss in ({"throttled": {"power cap": 0.4}}, {"clock_low": 1500}):
        (speed, *_) = compare_runs(before, run(12.0, 4.0, gpu=steady.model_copy(update=amiss)), 0.99)
        assert (speed.outcome, speed.again) == (Outcome.NOT_COMPARABLE, True)
        assert speed.why.startswith("the GPU")


def test_another_pytorch_is_another_baseline(run):
    (speed, *_) = compare_runs(run(13.0, 4.4), run(9.0, 3.0, pytorch="2.16.0"), 0.99)
    assert (speed.outcome, speed.why) == (Outcome.NOT_COMPARABLE, "another PyTorch: 2.15.0 and 2.16.0")
    assert not speed.again
    early = run(9.0, 3.0, pytorch=None)  # does not tell
    assert conclusion(compare_runs(run(13.0, 4.4), early, 0.99)) == Outcome.REGRESSION


def test_two_runs_on_a_slow_machine_are_not_compared_if_another_precision_saw_it_faster(run):
    """Equally slow is not alike."""
    slow, fast = run(13.0, 4.4, pace=7.4), run(9.0, 3.0, precision="fp32")
    before = slow.model_copy(update={"precisions": (*slow.precisions, *fast.precisions)})
    changes = compare_runs(before, slow, 0.99)
    assert [change.outcome for change in changes if change.figure == "speed"] == [Outcome.NOT_COMPARABLE]
    assert conclusion(compare_runs(slow, slow, 0.99)) == Outcome.NO_CHANGE


def test_another_version_is_compared_to_see_what_it_does(run):
    other = run(6.0, 2.0, runtime_version="9.9", driver="999", operating_system="Other 1")
    assert conclusion(compare_runs(run(13.0, 4.4), other, 0.99)) == Outcome.REGRESSION


@pytest.mark.parametrize(
    ("change", "figure", "outcome"),
    [
        ({"accuracy": 0.90}, "accuracy", Outcome.REGRESSION),
        ({"accuracy": 0.948}, "accuracy", Outcome.NO_CHANGE),
        ({"relative": 0.02}, "relative error", Outcome.REGRESSION),
        ({"relative": 0.005}, "relative error", Outcome.IMPROVEMENT),
        ({"relative": 0.0105}, "relative error", Outcome.NO_CHANGE),
        ({"as_asked": 0.9}, "executed as asked", Outcome.REGRESSION),
    ],
)
def test_results_are_compared_as_well(run, change, figure, outcome):
    assert outcomes(compare_runs(run(13.0, 4.4), run(13.0, 4.4, **change), 0.99))[figure] == outcome


def test_other_sets_of_images_are_not_compared(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0, 4.4, samples=256), 0.99)
    assert outcomes(changes)["accuracy"] == Outcome.NOT_COMPARABLE


def test_accuracies_that_were_not_measured_are_not_compared(run):
    labeled, bare = run(13.0, 4.4), run(13.0, 4.4, accuracy=None)
    assert "accuracy" not in outcomes(compare_runs(bare, bare, 0.99))
    for before, after, which in ((labeled, bare, "later"), (bare, labeled, "earlier")):
        changes = compare_runs(before, after, 0.99)
        (accuracy,) = [change for change in changes if change.figure == "accuracy"]
        assert accuracy.outcome == Outcome.NOT_COMPARABLE
        assert accuracy.why == f"the {which} run had no labels or no scores to measure it with"


def test_an_error_that_was_zero_is_no_division_by_it(run):
    called = outcomes(compare_runs(run(13.0, 4.4, relative=0.0), run(13.0, 4.4, relative=0.02), 0.99))
    assert called["relative error"] == Outcome.REGRESSION


def test_a_regression_outweighs_what_cannot_be_compared(run):
    changes = compare_runs(run(13.0, 4.4), run(13.0, 4.4, pace=7.4, accuracy=0.5), 0.99)
    assert conclusion(changes) == Outcome.REGRESSION


def test_runs_without_a_common_precision_are_refused(run):
    with pytest.raises(EngineryError, match="no precision in common"):
        compare_runs(run(1.0, 1.0), run(1.0, 1.0, precision="fp16"), 0.99)


def enginery(*arguments, folder):
    program = "from enginery.cli import main; main()"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=folder, capture_output=True, text=True, env=environment
    )


@pytest.fixture
def project(run, tmp_path):
    """A repository whose committed run was faster than the one that lies in its reports folder."""
    reports = tmp_path / "reports"
    run(13.0, 4.4).write(reports / "measurements.json")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a run"]):
        subprocess.run([*git, *command], check=True)
    run(11.5, 3.9).write(reports / "measurements.json")
    return tmp_path


def test_a_revision_is_compared_with_a_folder(project):
    done = enginery("compare", "HEAD", "reports", folder=project)
    assert done.returncode == 3, done.stderr
    assert "times eager, batch 8" in done.stdout
    assert "      4.4 -> 3.9 " in done.stdout
    assert max(map(len, done.stdout.splitlines())) < 80
    assert "regression, at a confidence of 99%\n\nRatios leave changes of up to 9% to chance here.\n" in done.stdout
    assert enginery("compare", "reports", "reports/measurements.json", folder=project).returncode == 0
    assert enginery("compare", "reports", "HEAD", folder=project).returncode == 0


def test_scripts_can_read_a_comparison(project):
    done = enginery("compare", "HEAD", "reports", "--json", folder=project)
    rows = json.loads(done.stdout)
    assert rows[0]["figure"] == "speed, all together"
    assert rows[0]["outcome"] == "regression"
    assert rows[0]["change"] < -rows[0]["slack"]


def test_what_cannot_be_compared_has_a_status_of_its_own(project, run):
    run(13.0, 4.4, pace=7.4).write(project / "reports" / "measurements.json")
    done = enginery("compare", "HEAD", "reports", folder=project)
    assert done.returncode == 4
    compared, others, said, hint = done.stdout.split("\n\n")
    assert "relative error" in compared
    assert others.startswith("not comparable:\nint8  speed")
    assert "measure again" in others
    assert said == "no regression, but 1 of 4 figures are not comparable, at a confidence of 99%"
    assert hint == "To tell 3 %, race both runs' engines: --race\n"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("nowhere", "nowhere is no file, no folder, and no git revision with reports/measurements.json"),
        ("broken", "broken/measurements.json is damaged or of another version of Enginery (machine: Field required)"),
        (".", ". holds no measurements.json: give the reports folder of a finished run"),
        ("broken/other.json", "; reports are compared by their measurements.json"),
        ("", "it is empty: was a variable of the shell not set?"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(project, place, said):
    (project / "broken").mkdir()
    (project / "broken" / "measurements.json").write_text("{}")
    (project / "broken" / "other.json").write_text("{}")
    done = enginery("compare", "HEAD", place, folder=project)
    assert done.returncode == (1 if place else 2)
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == (1 if place else 2 + done.stderr.count("\n      "))


def test_measurements_are_read_as_they_were_written(run, tmp_path):
    run(13.0, 4.4).write(tmp_path / "measurements.json")
    assert read_measurements(str(tmp_path)) == run(13.0, 4.4)


def test_a_race_without_engines_is_one_sentence(project, samples):
    shutil.copytree(samples.folder, project / "artifacts" / "samples" / "validation")
    shutil.copy(ROOT / "params.yaml", project)
    for before, said in {
        "reports": "artifacts/engines/int8 is missing: run `dvc checkout` or `dvc repro` in that project\n",
        "HEAD": "HEAD has no dvc.lock, which would say which engines are its own\n",
    }.items():
        done = enginery("compare", before, "reports", "--race", folder=project)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.endswith(said)
        assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("given", ["99", "high"])
def test_a_confidence_must_be_one(project, given):
    done = enginery("compare", "HEAD", "reports", "--confidence", given, folder=project)
    assert done.returncode == 2
    assert f"argument --confidence: {given} is no number between 0.5 and 1" in done.stderr


def test_what_scattered_in_either_run_is_not_held_against_the_other(run):
    for runs, again in (
        ((run(13, 4.4), run(9, 3.0, interval=0.06)), True),
        ((run(13, 4.4, interval=0.06), run(9, 3)), False),
    ):
        changes = [change for change in compare_runs(*runs, 0.99) if "times" in change.figure]
        assert [change.outcome for change in changes] == [Outcome.NOT_COMPARABLE] * 2
        assert {change.again for change in changes} == {again}
        assert all("timings scattered" in change.why for change in changes)


def test_calls_that_scatter_make_their_batch_size_incomparable_and_leave_the_others(run):
    after = run(9.0, 4.4)
    (measured,) = after.precisions
    small, large = measured.benchmark.latencies
    scattered = small.model_copy(update={"spread": 0.26})
    benchmark = measured.benchmark.model_copy(update={"latencies": (scattered, large)})
    noisy = after.model_copy(update={"precisions": (measured.model_copy(update={"benchmark": benchmark}),)})
    found = {change.figure: change.outcome for change in compare_runs(run(13.0, 4.4), noisy, 0.99)}
    assert found["times eager, batch 1"] == Outcome.NOT_COMPARABLE
    assert found["times eager, batch 8"] == found["speed, all together"] == Outcome.NO_CHANGE
