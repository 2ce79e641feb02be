"""Nights with made-up measurements."""

from datetime import UTC, datetime, timedelta

import pytest

from enginewright.measure.comparison import SpeedChange
from enginewright.measure.history import History, Setting, read_history
from enginewright.measure.records import Measurements
from enginewright.nightly.judgement import Found, judge
from enginewright.nightly.night import record, write_summary

SETTING = Setting(
    machine={"runtime": "openvino", "device_name": "AMD EPYC", "cores": 2},
    model={"name": "resnet18"},
    weights={},
    samples={},
)
START = datetime(2026, 11, 21, 2, 17, tzinfo=UTC)


class Nights:
    """One night after the other, with their measurements and races given in the order in which they are made."""

    def __init__(self, root, run):
        self.root, self.run, self.count = root, run, 0
        self.measured, self.raced, self.reasons = [], [], []

    def night(self, *measurements, broken=None, setting=SETTING, races=()):
        """`races` are int8's speed changes as logarithms. Without them, the good run's engine is missing."""
        history, measurements_left = History(self.root / setting.folder, setting), list(measurements)
        self.measured, self.raced, self.reasons = [], [], []
        start, races_left = START + timedelta(days=self.count), list(races)

        def measure(precisions, why):
            self.measured.append(set(precisions))
            self.reasons.append(why)
            return Found(measurements_left.pop(0), broken or {})

        def race(precisions):
            if precisions:
                self.raced.append(set(precisions))
            log = races_left.pop(0) if races_left and precisions else None
            return {} if log is None else {"int8": {"side by side, batch 1": SpeedChange(batch=1, log=log, error=0.01)}}

        judgement = judge(measure, race, history, 0.99, attempts=3)
        record(judgement, history, dict, start, f"revision{self.count}")
        assert not measurements_left, "a night must make all measurements of its test"
        assert not races_left, "a night must run all races of its test"
        self.count += 1
        return judgement

    def summary(self, judgement):
        (history,) = read_history(self.root)
        return write_summary(judgement, history.nights(), SETTING.title, 0.99, "# Which precision to ship\n")

    @property
    def good(self):
        return History(self.root / SETTING.folder, SETTING).good()


@pytest.fixture
def setting():
    return SETTING


@pytest.fixture
def nights(run, tmp_path):
    return Nights(tmp_path, run)


@pytest.fixture
def both(run):
    """Make up a run of fp32 and int8 from the ratios and conditions of each."""

    def make(fp32=(2.0, 1.5), int8=(13.0, 4.4), fp32_is=None, int8_is=None):
        runs = run(*fp32, precision="fp32", **(fp32_is or {})), run(*int8, **(int8_is or {}))
        return Measurements(machine=runs[0].machine, precisions=tuple(one.precisions[0] for one in runs))

    return make
