"""Every way a night can end, with made-up measurements. benchmarks/measuring/nights.py runs real ones."""

import math
import re
from pathlib import Path

import pytest
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.measure.history import Setting, read_history
from enginewright.measure.records import Outcome
from enginewright.nightly.judgement import Status
from enginewright.nightly.night import sentence

SLOW = 7.4  # the machine pace of a slow night; it is 5 in the others


def test_the_first_night_has_nothing_to_compare_with_and_becomes_the_good_run(nights, both):
    judgement = nights.night(both())
    assert judgement.status == Status.GOOD
    assert nights.measured == [set()]
    assert nights.good == both()
    assert sentence(judgement) == "Good: there is no good run to compare with; it becomes the good run."


def test_a_night_that_changed_nothing_is_good_and_leaves_the_good_run_as_it_is(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(13.05, 4.39)))
    assert judgement.status == Status.GOOD
    assert nights.measured == [set()]
    assert nights.good == both()
    assert sentence(judgement) == "Good: no change."


def test_a_night_with_too_few_samples_to_be_sure_is_neither_good_nor_red(nights, both):
    found = both()
    unsure = found.precisions[0].validation.model_copy(update={"unsure": ("it may be above",), "must_be_sure": True})
    first = found.precisions[0].model_copy(update={"validation": unsure})
    judgement = nights.night(found.model_copy(update={"precisions": (first, *found.precisions[1:])}))
    assert judgement.status == Status.UNSURE
    assert not judgement.becomes_good_run
    said = f"Neither good nor red: there are not enough samples to be sure ({first.precision}: it may be above)."
    assert sentence(judgement) == said


def test_a_regression_is_measured_once_more_and_red_if_it_is_seen_again(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.0, 3.7)), both(int8=(11.1, 3.72)))
    assert nights.measured == [set(), {"int8"}]
    assert nights.reasons == ["", " once more: a change counts only if it is seen twice"]
    assert judgement.status == Status.REGRESSION
    assert sentence(judgement).startswith("Red: a confirmed regression (int8: speed, all together -1")
    assert "fp32" not in sentence(judgement)
    assert nights.good == both()


def test_a_regression_that_is_not_seen_again_does_not_count(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.0, 3.7)), both())
    assert nights.measured == [set(), {"int8"}]
    assert judgement.status == Status.GOOD
    assert sentence(judgement) == "Good: no change."
    assert nights.good == both()


def test_two_regressions_of_different_figures_do_not_confirm_each_other(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.5, 4.7)), both(int8=(14.0, 3.9)))
    assert judgement.status == Status.GOOD
    doubted = [change for change in judgement.changes if change.why == "seen in one of two measurements"]
    assert {change.figure for change in doubted} >= {"times eager, batch 8"}


def test_a_loss_of_accuracy_is_confirmed_like_any_other(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8_is={"accuracy": 0.8}), both(int8_is={"accuracy": 0.8}))
    assert judgement.status == Status.REGRESSION
    assert "int8: accuracy -15.0%" in sentence(judgement)


def test_an_improvement_is_confirmed_and_becomes_the_good_run(nights, both):
    nights.night(both())
    better = both(int8=(15.0, 5.1))
    judgement = nights.night(both(int8=(15.1, 5.0)), better)
    assert judgement.status == Status.GOOD
    assert nights.good == better
    assert sentence(judgement).startswith("Good: better and confirmed (int8: speed, all together +")
    assert nights.night(both(), both()).status == Status.REGRESSION


def test_an_unconfirmed_improvement_does_not_become_the_good_run(nights, both):
    nights.night(both())
    nights.night(both(int8=(15.0, 5.1)), both())
    assert nights.good == both()
    assert nights.night(both()).status == Status.GOOD


def test_a_slow_creep_is_found_because_it_does_not_replace_the_good_run(nights, both):
    losses = [both(int8=(13.0 * 0.97**night, 4.4 * 0.97**night)) for night in range(6)]
    statuses = [nights.night(*[loss] * (1 if night < 4 else 2)).status for night, loss in enumerate(losses)]
    assert statuses == [Status.GOOD] * 4 + [Status.REGRESSION] * 2


def test_a_race_finds_a_slow_creep_that_ratios_miss(nights, both):
    nights.night(both())
    creep = [night * math.log(0.98) for night in range(1, 4)]
    assert nights.night(both(), races=creep[:1]).status == Status.GOOD
    assert nights.night(both(), both(), races=creep[1:2] * 2).status == Status.REGRESSION
    assert nights.night(both(), both(), races=creep[2:3] * 2).status == Status.REGRESSION


def test_only_a_precision_timed_on_a_slower_machine_is_measured_again(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(9.0, 3.0), int8_is={"pace": SLOW}), both())
    assert nights.measured == [set(), {"int8"}]
    assert judgement.status == Status.GOOD


def test_a_machine_that_stays_slow_is_neither_good_nor_red(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    judgement = nights.night(*[slow] * 4)
    assert nights.measured == [set(), *[{"int8"}] * 3]
    slower = "int8: the machine was 0.68 times as fast as it can be while one was timed"
    assert nights.reasons == ["", *(f" again, {number} of at most 3 times: {slower}" for number in (1, 2, 3))]
    assert judgement.status == Status.NOT_COMPARABLE
    assert "int8: the machine was 0.68 times as fast as it can be while one was timed" in sentence(judgement)
    assert nights.good == both()


def test_a_race_decides_what_ratios_on_a_slow_machine_cannot(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    judgement = nights.night(slow, races=[0.001])
    assert (nights.measured, nights.raced) == ([set()], [{"fp32", "int8"}])
    assert judgement.status == Status.GOOD
    assert sentence(judgement) == "Good: no change."
    assert nights.good == both(), "a night that changed nothing leaves the good run as it is"


def test_a_regression_in_a_race_is_raced_once_more(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    judgement = nights.night(slow, slow, races=[-0.1, -0.09])
    assert (nights.measured, nights.raced) == ([set(), {"int8"}], [{"fp32", "int8"}] * 2)
    assert judgement.status == Status.REGRESSION
    assert sentence(judgement).startswith("Red: a confirmed regression (int8: speed, all together -8.6%")
    assert "Figures side by side are milliseconds of races against the good run's engine" in nights.summary(judgement)
    assert nights.night(slow, slow, races=[-0.1, 0.0]).status == Status.GOOD


def test_a_race_confirms_a_regression_by_ratios_if_the_machine_becomes_slow(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    slower = both(int8=(11.0, 3.7))
    assert nights.night(slower, slow, races=[-0.15, -0.15]).status == Status.REGRESSION
    assert nights.night(slower, slow, races=[-0.15, 0.0]).status == Status.GOOD


def test_a_regression_by_ratios_that_no_race_confirms_is_not_comparable(nights, both):
    nights.night(both())
    slower = both(int8=(11.0, 3.7))
    assert nights.night(slower, both(), races=[0.0]).status == Status.GOOD
    judgement = nights.night(*[slower] * 4, races=[0.0] * 4)
    assert judgement.status == Status.NOT_COMPARABLE
    said = [change.why for change in judgement.changes if change.outcome is Outcome.NOT_COMPARABLE]
    assert said == ["-15.6% beside PyTorch, but not slower than the good run's engine side by side: measure again"]
    assert nights.good == both()


def test_with_a_new_driver_there_is_no_race_because_both_engines_would_have_it(nights, both):
    nights.night(both())
    slower = both(int8=(11.0, 3.7))
    slower = slower.model_copy(update={"machine": slower.machine.model_copy(update={"driver": "600"})})
    assert nights.night(slower, slower).status == Status.REGRESSION
    assert nights.raced == []


def test_a_regression_at_one_batch_size_is_confirmed_by_a_race_at_that_one(nights, both):
    nights.night(both())
    slow = both(int8_is={"pace": SLOW})
    assert nights.night(both(int8=(11.5, 4.4)), slow, races=[-0.12, -0.12]).status == Status.REGRESSION


def test_a_good_run_on_a_slow_machine_is_raced_before_it_is_replaced(nights, both):
    nights.night(both(fp32_is={"pace": SLOW}, int8_is={"pace": SLOW}))
    first = nights.good
    worse = both(int8=(11.0, 3.7))
    assert nights.night(worse, worse, races=[-0.15, -0.15]).status == Status.REGRESSION
    assert nights.good == first
    assert nights.night(both(), races=[0.0]).status == Status.GOOD
    assert nights.good == both()


def test_a_disturbed_night_without_a_change_does_not_replace_another_one(nights, both):
    slow = both(fp32_is={"pace": SLOW}, int8_is={"pace": SLOW})
    nights.night(slow)
    disturbed = both(int8_is={"others": 0.9})
    assert nights.night(disturbed, races=[0.0]).status == Status.GOOD
    assert nights.good == slow


def test_an_improvement_in_races_becomes_the_good_run(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    assert nights.night(slow, slow, races=[0.1, 0.1]).status == Status.GOOD
    assert nights.good == slow


def test_without_a_race_the_ratios_decide(nights, both):
    nights.night(both())
    slow = both(int8_is={"pace": SLOW})
    assert nights.night(*[slow] * 4).status == Status.NOT_COMPARABLE
    assert nights.raced == [{"fp32", "int8"}] * 4


def test_a_first_night_on_a_disturbed_machine_is_the_good_run_until_there_is_a_good_night(nights, both):
    busy = both(int8_is={"others": 0.9})
    judgement = nights.night(*[busy] * 4)
    assert judgement.status == Status.NOT_COMPARABLE
    assert sentence(judgement).endswith("; it stands in for a good run until there is one.")
    assert nights.good == busy
    assert nights.night(both()).status == Status.GOOD
    assert nights.good == both()


def test_a_large_loss_is_red_even_on_a_machine_that_is_never_quiet(nights, both):
    busy, lost = both(int8_is={"others": 0.9}), both(int8=(6.0, 2.0), int8_is={"others": 0.9})
    nights.night(*[busy] * 4)
    assert nights.night(*[busy] * 4).status == Status.NOT_COMPARABLE
    judgement = nights.night(lost, lost)
    assert judgement.status == Status.REGRESSION
    assert sentence(judgement).startswith("Red: a confirmed regression (int8: speed, all together -5")


def test_a_regression_is_not_confirmed_if_the_machine_becomes_slow(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.0, 3.7)), *[both(int8=(9.0, 3.0), int8_is={"pace": SLOW})] * 4)
    assert judgement.status == Status.NOT_COMPARABLE


def test_a_change_is_not_confirmed_if_the_first_measurement_was_not_comparable(nights, both):
    """The accuracy causes a second measurement, and only that one is on a fast machine."""
    nights.night(both())
    slow = both(int8_is={"pace": SLOW, "accuracy": 0.8})
    judgement = nights.night(*[slow] * 4, both(int8=(11.0, 3.7), int8_is={"accuracy": 0.95}))
    assert judgement.status == Status.NOT_COMPARABLE
    assert "seen once" in sentence(judgement)


def test_a_change_of_pytorch_itself_is_measured_again_and_reported_once(nights, both):
    nights.night(both())
    moved = both(int8=(13.0 * 0.8, 4.4 * 0.8), int8_is={"took": (0.8, 0.8)})
    judgement = nights.night(*[moved] * 4)
    assert nights.measured == [set(), {"int8"}, {"int8"}, {"int8"}]
    assert judgement.status == Status.NOT_COMPARABLE
    assert sentence(judgement).count("the baseline itself was 1.25 times as fast") == 1
    assert nights.good == both()


def test_a_change_that_pytorchs_own_change_hid_the_first_time_is_not_comparable(nights, both):
    nights.night(both())
    hidden = both(int8=(13.0 * 0.8, 4.4), int8_is={"took": (0.8, 1.12), "accuracy": 0.8})
    judgement = nights.night(*[hidden] * 4, both(int8=(11.0, 4.4), int8_is={"accuracy": 0.95}))
    assert judgement.status == Status.NOT_COMPARABLE
    assert "seen once, and not comparable the other time" in sentence(judgement)


def test_another_pytorch_makes_a_new_good_run(nights, both):
    nights.night(both())
    newer = both(fp32_is={"pytorch": "2.16.0"}, int8=(9.0, 3.0), int8_is={"pytorch": "2.16.0"})
    judgement = nights.night(newer)
    assert judgement.status == Status.GOOD
    assert "another PyTorch: 2.15.0 and 2.16.0; it becomes the good run" in sentence(judgement).replace(")", "")
    assert nights.good == newer


def test_a_machine_that_is_faster_than_before_makes_a_new_good_run(nights, both):
    """Measuring again would not help: it is the good run that was timed on a slower machine."""
    nights.night(both(fp32_is={"pace": SLOW}, int8_is={"pace": SLOW}))
    judgement = nights.night(both())
    assert judgement.status == Status.GOOD
    assert "not comparable with the good run (fp32: the machine was 0.68 times as fast" in sentence(judgement)
    assert nights.good == both()


def test_other_threads_make_a_new_good_run_and_say_so(nights, both):
    nights.night(both())
    one_thread = both(fp32_is={"threads": 1}, int8_is={"threads": 1})
    judgement = nights.night(one_thread)
    assert "fp32: 2 threads and 1" in sentence(judgement)
    assert nights.good == one_thread


def test_a_new_precision_joins_the_good_run(nights, both, run):
    only_int8 = run(13.0, 4.4)
    nights.night(only_int8)
    judgement = nights.night(both())
    assert judgement.status == Status.GOOD
    assert nights.good == both()
    assert nights.night(only_int8).status == Status.GOOD
    assert nights.good == both()


def test_a_new_precision_that_was_timed_on_a_busy_machine_is_measured_again(nights, both, run):
    nights.night(run(13.0, 4.4))
    nights.night(both(fp32_is={"others": 0.9}), both())
    assert nights.measured == [set(), {"fp32"}]


def test_a_night_without_a_common_precision_becomes_the_good_run(nights, run):
    nights.night(run(13.0, 4.4))
    judgement = nights.night(run(2.0, 1.5, precision="fp16"))
    assert judgement.status == Status.GOOD
    assert nights.good == run(2.0, 1.5, precision="fp16")


def test_a_red_gate_is_reported_with_its_reason_and_never_becomes_the_good_run(nights, both):
    broken = {"fp32": (), "int8": ("cosine 0.9 is below 0.99",)}
    judgement = nights.night(both(), broken=broken)
    assert judgement.status == Status.GATE
    assert sentence(judgement) == "Red: the gate is red (int8: cosine 0.9 is below 0.99)."
    assert nights.good is None
    (history,) = read_history(nights.root)
    assert {night.precision: night.broken for night in history.nights()} == broken


def test_a_red_gate_does_not_hide_a_regression(nights, both):
    nights.night(both())
    judgement = nights.night(*[both(int8=(11.0, 3.7))] * 2, broken={"fp32": ("accuracy drop 5% is above 1%",)})
    assert judgement.status == Status.GATE
    assert ", and a confirmed regression (int8: " in sentence(judgement)


def test_what_is_left_at_its_default_is_no_part_of_the_setting(machine):
    params = Params.read(ROOT / "params.yaml")
    setting = Setting.of(machine, params.model_copy(update={"task": "segmentation"}))
    assert setting.samples.keys() == {"source", "seed", "validation", "training", "preprocessing"}
    assert setting.samples["preprocessing"].keys() == {"resize", "crop", "interpolation", "mean", "std"}
    assert setting.model == {"source": "resnet18", "arguments": {}, "task": "segmentation"}
    assert Setting.of(machine, params).model == {"source": "resnet18", "arguments": {}}
    preprocessing = params.samples.preprocessing.model_copy(update={"color": "bgr"})
    changed = Setting.of(
        machine,
        params.model_copy(update={"samples": params.samples.model_copy(update={"preprocessing": preprocessing})}),
    )
    assert changed.samples == setting.samples | {
        "preprocessing": setting.samples["preprocessing"] | {"color": "bgr"},
    }, "a history of before these parameters had defaults goes on"


def test_two_machines_have_a_good_run_each(nights, both, tmp_path, setting):
    other = setting.model_copy(update={"machine": setting.machine.model_copy(update={"device_name": "NVIDIA H200"})})
    nights.night(both())
    nights.night(both(int8=(20.0, 9.0)), setting=other)
    assert nights.good == both()
    assert nights.night(both(int8=(20.1, 9.0)), setting=other).status == Status.GOOD
    assert len(read_history(tmp_path)) == 2


@pytest.mark.parametrize(
    "break_line",
    [
        lambda line: "<<<<<<< HEAD",
        lambda line: line[:-20],
        lambda line: re.sub(r'"ratios":\[.*?\]', '"ratios":[]', line),
        lambda line: re.sub(r'"median":[0-9.]+', '"median":0', line),  # which no geometric mean takes
        lambda line: re.sub(r'("date":"[^"]*)Z"', r'\1"', line),  # which cannot be put in order with the others
        lambda line: line.replace("fp32", "fp6"),
    ],
)
def test_a_broken_history_is_one_sentence_before_anything_is_measured(nights, both, break_line):
    nights.night(both())
    (history,) = read_history(nights.root)
    path = history.folder / "nights.jsonl"
    first, second = path.read_text().splitlines()
    broken = break_line(first)
    assert broken != first
    path.write_text(f"{first}\n{second}\n{broken}\n")
    with pytest.raises(
        EnginewrightError, match=r"nights\.jsonl, line 3 is damaged .*\)\. Mend that line, or take the file back"
    ):
        nights.night()
    assert nights.measured == []


@pytest.mark.parametrize("leave", [Path.unlink, lambda path: path.write_text("")])
def test_a_history_without_a_night_is_as_none(nights, both, leave):
    nights.night(both())
    (history,) = read_history(nights.root)
    leave(history.folder / "nights.jsonl")
    assert read_history(nights.root) == []


def test_a_broken_setting_is_one_sentence(nights, both):
    nights.night(both())
    (history,) = read_history(nights.root)
    path = history.folder / "setting.json"
    path.write_text(re.sub(r'"device_name": "[^"]*",', "", path.read_text()))
    with pytest.raises(EnginewrightError, match=r"setting\.json is damaged .*device_name.*\)\. Take the file back"):
        read_history(nights.root)


def test_a_broken_good_run_is_one_sentence_before_anything_is_measured(nights, both):
    nights.night(both())
    (history,) = read_history(nights.root)
    (history.folder / "good.json").write_text("{}")
    with pytest.raises(
        EnginewrightError, match=r"good\.json is damaged .*\)\. Take the file back from git, or delete it"
    ):
        nights.night()
    assert nights.measured == []


def test_deleting_the_good_run_accepts_a_loss(nights, both, setting):
    nights.night(both())
    worse = both(int8=(11.0, 3.7))
    assert nights.night(worse, worse).status == Status.REGRESSION
    (nights.root / setting.folder / "good.json").unlink()
    assert nights.night(worse).status == Status.GOOD
    assert nights.good == worse
