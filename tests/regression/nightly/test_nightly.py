"""Nights with made-up measurements: every way one can end. benchmarks/nights.py runs real ones."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from enginery.core.errors import EngineryError
from enginery.regression.comparison import Outcome
from enginery.regression.history import History, Setting, last_kept, read_history
from enginery.regression.measurements import Measurements
from enginery.regression.nightly.__main__ import record_night
from enginery.regression.nightly.judgement import Found, Status
from enginery.regression.nightly.summary import sentence, write_summary
from enginery.regression.speed_change import SpeedChange
from enginery.report.trend import draw_trend, trend_rows, trend_section

FAST, SLOW = 5.0, 7.4  # the pace of the machine
SETTING = Setting(
    machine={"runtime": "openvino", "device_name": "AMD EPYC", "cores": 2},
    model={"name": "resnet18"},
    weights={},
    samples={},
)
START = datetime(2026, 11, 21, 2, 17, tzinfo=UTC)


class Nights:
    """Night after night of one setting; what each measures is given in the order in which it will be asked for."""

    def __init__(self, root, run):
        self.root, self.run, self.count = root, run, 0
        self.asked, self.raced = [], []

    def night(self, *measurements, broken=None, setting=SETTING, races=()):
        """`races` are what int8's tell, as logarithms; without them no engine of the good run is at hand."""
        history, waiting = History(self.root / setting.folder, setting), list(measurements)
        self.asked, self.raced, start, left = [], [], START + timedelta(days=self.count), list(races)

        def measure(precisions):
            self.asked.append(set(precisions))
            return Found(waiting.pop(0), broken or {})

        def race(precisions):
            if precisions:
                self.raced.append(set(precisions))
            log = left.pop(0) if left and precisions else None
            return {} if log is None else {"int8": {"side by side, batch 1": SpeedChange(batch=1, log=log, error=0.01)}}

        judgement = record_night(history, measure, race, dict, start, f"revision{self.count}", 0.99, attempts=3)
        assert not waiting, "it was to measure more often"
        assert not left, "it was to race more often"
        self.count += 1
        return judgement

    def summary(self, judgement):
        (history,) = read_history(self.root)
        return write_summary(judgement, history.nights(), SETTING.title, 0.99, "# Which precision to ship\n")

    @property
    def good(self):
        return History(self.root / SETTING.folder, SETTING).good()


@pytest.fixture
def nights(run, tmp_path):
    return Nights(tmp_path, run)


@pytest.fixture
def both(run):
    """A run of fp32 and int8, each with its ratios and conditions."""

    def make(fp32=(2.0, 1.5), int8=(13.0, 4.4), fp32_is=None, int8_is=None):
        runs = run(*fp32, precision="fp32", **(fp32_is or {})), run(*int8, **(int8_is or {}))
        return Measurements(machine=runs[0].machine, precisions=tuple(one.precisions[0] for one in runs))

    return make


def test_the_first_night_has_nothing_to_compare_with_and_becomes_the_good_run(nights, both):
    judgement = nights.night(both())
    assert judgement.status == Status.GOOD
    assert nights.asked == [set()]
    assert nights.good == both()
    assert sentence(judgement) == "Good: there is no good run to compare with; it becomes the good run."


def test_a_night_that_changed_nothing_is_good_and_leaves_the_good_run_as_it_is(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(13.05, 4.39)))
    assert judgement.status == Status.GOOD
    assert nights.asked == [set()]
    assert nights.good == both()
    assert sentence(judgement) == "Good: no change."


def test_a_regression_is_measured_once_more_and_red_if_it_is_seen_again(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.0, 3.7)), both(int8=(11.1, 3.72)))
    assert nights.asked == [set(), {"int8"}]
    assert judgement.status == Status.REGRESSION
    assert sentence(judgement).startswith("Red: a confirmed regression (int8: speed, all together -1")
    assert "fp32" not in sentence(judgement)
    assert nights.good == both()


def test_a_regression_that_is_not_seen_again_is_none(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.0, 3.7)), both())
    assert nights.asked == [set(), {"int8"}]
    assert judgement.status == Status.GOOD
    assert sentence(judgement) == "Good: no change."
    assert nights.good == both()


def test_two_regressions_of_different_figures_confirm_nothing(nights, both):
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


def test_an_improvement_that_is_luck_does_not_raise_the_bar(nights, both):
    nights.night(both())
    nights.night(both(int8=(15.0, 5.1)), both())
    assert nights.good == both()
    assert nights.night(both()).status == Status.GOOD


def test_a_slow_creep_is_found_because_no_night_of_it_moves_the_good_run(nights, both):
    losses = [both(int8=(13.0 * 0.97**night, 4.4 * 0.97**night)) for night in range(6)]
    statuses = [nights.night(*[loss] * (1 if night < 4 else 2)).status for night, loss in enumerate(losses)]
    assert statuses == [Status.GOOD] * 4 + [Status.REGRESSION] * 2


def test_a_race_finds_a_slow_creep_that_ratios_are_too_coarse_for(nights, both):
    nights.night(both())
    creep = [night * math.log(0.98) for night in range(1, 4)]
    assert nights.night(both(), races=creep[:1]).status == Status.GOOD
    assert nights.night(both(), both(), races=creep[1:2] * 2).status == Status.REGRESSION
    assert nights.night(both(), both(), races=creep[2:3] * 2).status == Status.REGRESSION


def test_what_was_timed_on_a_slower_machine_is_measured_again_and_no_other(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(9.0, 3.0), int8_is={"pace": SLOW}), both())
    assert nights.asked == [set(), {"int8"}]
    assert judgement.status == Status.GOOD


def test_a_machine_that_stays_slow_is_neither_good_nor_red(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    judgement = nights.night(*[slow] * 4)
    assert nights.asked == [set(), *[{"int8"}] * 3]
    assert judgement.status == Status.NOT_COMPARABLE
    assert "int8: the machine was 1.48 times as slow while one was timed" in sentence(judgement)
    assert nights.good == both()


def test_what_a_slow_machine_hides_a_race_against_the_good_runs_engine_tells(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    judgement = nights.night(slow, races=[0.001])
    assert (nights.asked, nights.raced) == ([set()], [{"fp32", "int8"}])
    assert judgement.status == Status.GOOD
    assert sentence(judgement) == "Good: no change."
    assert nights.good == both(), "a night that changed nothing leaves the good run as it is"


def test_a_regression_that_a_race_tells_is_raced_once_more(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    judgement = nights.night(slow, slow, races=[-0.1, -0.09])
    assert (nights.asked, nights.raced) == ([set(), {"int8"}], [{"fp32", "int8"}] * 2)
    assert judgement.status == Status.REGRESSION
    assert sentence(judgement).startswith("Red: a confirmed regression (int8: speed, all together -8.6%")
    assert "Side by side are races against the good run's engine" in nights.summary(judgement)
    assert nights.night(slow, slow, races=[-0.1, 0.0]).status == Status.GOOD


def test_a_regression_by_ratios_is_confirmed_by_a_race_where_the_machine_turns_slow(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    slower = both(int8=(11.0, 3.7))
    assert nights.night(slower, slow, races=[-0.15, -0.15]).status == Status.REGRESSION
    assert nights.night(slower, slow, races=[-0.15, 0.0]).status == Status.GOOD


def test_a_regression_by_ratios_that_no_race_confirms_is_not_the_engines(nights, both):
    nights.night(both())
    slower = both(int8=(11.0, 3.7))
    assert nights.night(slower, both(), races=[0.0]).status == Status.GOOD
    judgement = nights.night(*[slower] * 4, races=[0.0] * 4)
    assert judgement.status == Status.NOT_COMPARABLE
    said = [change.why for change in judgement.changes if change.outcome is Outcome.NOT_COMPARABLE]
    assert said == ["-15.6% beside PyTorch, but not slower than the good run's engine side by side: measure again"]
    assert nights.good == both()


def test_what_a_new_driver_does_is_not_raced_for_both_engines_would_have_it(nights, both):
    nights.night(both())
    slower = both(int8=(11.0, 3.7))
    slower = slower.model_copy(update={"machine": slower.machine.model_copy(update={"driver": "600"})})
    assert nights.night(slower, slower).status == Status.REGRESSION
    assert nights.raced == []


def test_a_regression_at_one_batch_size_is_confirmed_by_a_race_at_that_one(nights, both):
    nights.night(both())
    slow = both(int8_is={"pace": SLOW})
    assert nights.night(both(int8=(11.5, 4.4)), slow, races=[-0.12, -0.12]).status == Status.REGRESSION


def test_a_good_run_of_a_slow_machine_is_raced_before_it_is_replaced(nights, both):
    nights.night(both(fp32_is={"pace": SLOW}, int8_is={"pace": SLOW}))
    first = nights.good
    worse = both(int8=(11.0, 3.7))
    assert nights.night(worse, worse, races=[-0.15, -0.15]).status == Status.REGRESSION
    assert nights.good == first
    assert nights.night(both(), races=[0.0]).status == Status.GOOD
    assert nights.good == both()


def test_a_disturbed_night_that_a_race_finds_unchanged_does_not_replace_another(nights, both):
    slow = both(fp32_is={"pace": SLOW}, int8_is={"pace": SLOW})
    nights.night(slow)
    disturbed = both(int8_is={"others": 0.9})
    assert nights.night(disturbed, races=[0.0]).status == Status.GOOD
    assert nights.good == slow


def test_an_improvement_that_races_tell_becomes_the_good_run(nights, both):
    nights.night(both())
    slow = both(int8=(9.0, 3.0), int8_is={"pace": SLOW})
    assert nights.night(slow, slow, races=[0.1, 0.1]).status == Status.GOOD
    assert nights.good == slow


def test_a_race_that_cannot_be_held_leaves_the_night_as_it_was(nights, both):
    nights.night(both())
    slow = both(int8_is={"pace": SLOW})
    assert nights.night(*[slow] * 4).status == Status.NOT_COMPARABLE
    assert nights.raced == [{"fp32", "int8"}] * 4


def test_a_first_night_on_a_disturbed_machine_stands_in_for_a_good_one(nights, both):
    busy = both(int8_is={"others": 0.9})
    judgement = nights.night(*[busy] * 4)
    assert judgement.status == Status.NOT_COMPARABLE
    assert sentence(judgement).endswith("; it stands in for a good run until there is one.")
    assert nights.good == busy
    assert nights.night(both()).status == Status.GOOD
    assert nights.good == both()


def test_on_a_machine_that_is_never_quiet_a_large_loss_is_red_all_the_same(nights, both):
    busy, lost = both(int8_is={"others": 0.9}), both(int8=(6.0, 2.0), int8_is={"others": 0.9})
    nights.night(*[busy] * 4)
    assert nights.night(*[busy] * 4).status == Status.NOT_COMPARABLE
    judgement = nights.night(lost, lost)
    assert judgement.status == Status.REGRESSION
    assert sentence(judgement).startswith("Red: a confirmed regression (int8: speed, all together -5")


def test_a_regression_on_a_machine_that_then_turns_slow_is_not_confirmed(nights, both):
    nights.night(both())
    judgement = nights.night(both(int8=(11.0, 3.7)), *[both(int8=(9.0, 3.0), int8_is={"pace": SLOW})] * 4)
    assert judgement.status == Status.NOT_COMPARABLE


def test_a_change_that_only_one_measurement_could_show_is_not_confirmed(nights, both):
    """The accuracy asks for a second measurement, and only that one was on a fast machine."""
    nights.night(both())
    slow = both(int8_is={"pace": SLOW, "accuracy": 0.8})
    judgement = nights.night(*[slow] * 4, both(int8=(11.0, 3.7), int8_is={"accuracy": 0.95}))
    assert judgement.status == Status.NOT_COMPARABLE
    assert "seen once" in sentence(judgement)


def test_what_pytorch_did_itself_is_measured_again_and_told_once(nights, both):
    nights.night(both())
    moved = both(int8=(13.0 * 0.8, 4.4 * 0.8), int8_is={"took": (0.8, 0.8)})
    judgement = nights.night(*[moved] * 4)
    assert nights.asked == [set(), {"int8"}, {"int8"}, {"int8"}]
    assert judgement.status == Status.NOT_COMPARABLE
    assert sentence(judgement).count("the baseline itself took 0.80 times as long") == 1
    assert nights.good == both()


def test_a_change_that_pytorch_hid_the_other_time_is_not_confirmed_and_not_forgotten(nights, both):
    nights.night(both())
    hidden = both(int8=(13.0 * 0.8, 4.4), int8_is={"took": (0.8, 1.12), "accuracy": 0.8})
    judgement = nights.night(*[hidden] * 4, both(int8=(11.0, 4.4), int8_is={"accuracy": 0.95}))
    assert judgement.status == Status.NOT_COMPARABLE
    assert "seen once, and not comparable the other time" in sentence(judgement)


def test_another_pytorch_begins_anew(nights, both):
    nights.night(both())
    newer = both(fp32_is={"pytorch": "2.16.0"}, int8=(9.0, 3.0), int8_is={"pytorch": "2.16.0"})
    judgement = nights.night(newer)
    assert judgement.status == Status.GOOD
    assert "another PyTorch: 2.15.0 and 2.16.0; it becomes the good run" in sentence(judgement).replace(")", "")
    assert nights.good == newer


def test_a_machine_faster_than_that_of_the_good_run_makes_a_new_good_run(nights, both):
    """Measuring again would not help: it is the good run that was timed on a slower machine."""
    nights.night(both(fp32_is={"pace": SLOW}, int8_is={"pace": SLOW}))
    judgement = nights.night(both())
    assert judgement.status == Status.GOOD
    assert "not comparable with the good run (fp32: the machine was 1.48 times as slow" in sentence(judgement)
    assert nights.good == both()


def test_other_threads_make_a_new_good_run_and_say_so(nights, both):
    nights.night(both())
    one_thread = both(fp32_is={"threads": 1}, int8_is={"threads": 1})
    judgement = nights.night(one_thread)
    assert "fp32: 2 threads and 1" in sentence(judgement)
    assert nights.good == one_thread


def test_a_new_precision_joins_the_good_run(nights, both, run):
    alone = run(13.0, 4.4)
    nights.night(alone)
    judgement = nights.night(both())
    assert judgement.status == Status.GOOD
    assert nights.good == both()
    assert nights.night(alone).status == Status.GOOD
    assert nights.good == both()


def test_a_new_precision_that_was_disturbed_is_measured_again(nights, both, run):
    nights.night(run(13.0, 4.4))
    nights.night(both(fp32_is={"others": 0.9}), both())
    assert nights.asked == [set(), {"fp32"}]


def test_nothing_in_common_with_the_good_run_is_a_first_night(nights, run):
    nights.night(run(13.0, 4.4))
    judgement = nights.night(run(2.0, 1.5, precision="fp16"))
    assert judgement.status == Status.GOOD
    assert nights.good == run(2.0, 1.5, precision="fp16")


def test_a_red_gate_is_told_with_the_evidence_and_never_becomes_the_good_run(nights, both):
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


def test_two_machines_have_a_good_run_each(nights, both, tmp_path):
    other = SETTING.model_copy(update={"machine": SETTING.machine | {"device_name": "NVIDIA H200"}})
    nights.night(both())
    nights.night(both(int8=(20.0, 9.0)), setting=other)
    assert nights.good == both()
    assert nights.night(both(int8=(20.1, 9.0)), setting=other).status == Status.GOOD
    assert len(read_history(tmp_path)) == 2


def test_a_broken_history_is_one_sentence_before_anything_is_measured(nights, both):
    nights.night(both())
    (history,) = read_history(nights.root)
    with (history.folder / "nights.jsonl").open("a") as file:
        file.write("<<<<<<< HEAD\n")
    with pytest.raises(
        EngineryError, match=r"nights\.jsonl, line 3 is damaged .*\)\. Mend that line, or take the file back"
    ):
        nights.night()
    assert nights.asked == []


def test_a_broken_good_run_is_one_sentence_before_anything_is_measured(nights, both):
    nights.night(both())
    (history,) = read_history(nights.root)
    (history.folder / "good.json").write_text("{}")
    with pytest.raises(EngineryError, match=r"good\.json is damaged .*\)\. Take the file back from git, or delete it"):
        nights.night()
    assert nights.asked == []


def test_deleting_the_good_run_accepts_a_loss(nights, both):
    nights.night(both())
    worse = both(int8=(11.0, 3.7))
    assert nights.night(worse, worse).status == Status.REGRESSION
    (nights.root / SETTING.folder / "good.json").unlink()
    assert nights.night(worse).status == Status.GOOD
    assert nights.good == worse


def test_the_history_has_a_line_for_each_night_and_precision(nights, both):
    nights.night(both())
    nights.night(*[both(int8=(11.0, 3.7))] * 2)
    (history,) = read_history(nights.root)
    lines = history.nights()
    assert [(night.revision, night.precision) for night in lines] == [
        ("revision0", "fp32"), ("revision0", "int8"), ("revision1", "fp32"), ("revision1", "int8"),
    ]  # fmt: skip
    assert [night.outcome for night in lines] == [None, None, Outcome.NO_CHANGE, Outcome.REGRESSION]
    assert [night.good for night in lines] == [True, True, False, False]
    assert last_kept(lines).revision == "revision0"
    assert lines[1].speed() == pytest.approx((13.0 * 4.4) ** 0.5)


def test_the_summary_says_what_changed_since_when_and_how_the_nights_were(nights, both):
    nights.night(both())
    summary = nights.summary(nights.night(*[both(int8=(11.0, 3.7))] * 2))
    assert summary.startswith("# Red: a confirmed regression (int8: ")
    assert "The last good night: 2026-11-21." in summary
    assert "That of 2026-11-21 02:17; `git log --oneline revision0..revision1` tells what changed since." in summary
    assert "| int8        | times eager, batch 8 | 4.4        | 3.7          | -15.9%" in summary
    assert "| 2026-11-21 02:17 | revision0  | 1.73 (first) | 7.56 (first)      | good, kept |" in summary
    assert "| 2026-11-22 02:17 | revision1  | 1.73         | 6.38 (regression) | not good   |" in summary
    assert "\n## Which precision to ship\n" in summary


def test_the_summary_links_the_run_on_github(nights, both, monkeypatch):
    judgement = nights.night(both())
    assert "#artifacts" not in nights.summary(judgement)
    for name, value in {"SERVER_URL": "https://github.com", "REPOSITORY": "me/it", "RUN_ID": "42"}.items():
        monkeypatch.setenv(f"GITHUB_{name}", value)
    assert "(https://github.com/me/it/actions/runs/42#artifacts)" in nights.summary(judgement)


def test_the_trend_is_drawn_of_every_machine(nights, both, tmp_path):
    other = SETTING.model_copy(update={"machine": SETTING.machine | {"device_name": "NVIDIA H200"}})
    nights.night(both())
    nights.night(both(), setting=other)
    nights.night(*[both(int8=(11.0, 3.7))] * 2)
    rows = trend_rows(read_history(tmp_path))
    assert len(rows) == 6
    assert list(rows[rows["precision"] == "int8"]["verdict"]) == ["first", "regression", "first"]
    assert set(rows["setting"]) == {SETTING.title, other.title}
    draw_trend(read_history(tmp_path), tmp_path / "trend.png")
    assert (tmp_path / "trend.png").stat().st_size > 10_000
    assert "figures/trend.png" in trend_section(read_history(tmp_path))


def test_without_nights_there_is_no_trend(tmp_path):
    assert read_history(tmp_path) == []
    assert trend_section([]) == ""
