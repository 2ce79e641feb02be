"""Read what a run of the pipeline found as one value."""

from pathlib import Path
from typing import NamedTuple

from enginewright.core.paths import VERDICT
from enginewright.engine.machine import Machine
from enginewright.regression.measurements import Measured, read_measurements
from enginewright.regression.verdict import Verdict


class Report(NamedTuple):
    recommended: str | None  # the precision to ship
    failures: dict[str, tuple[str, ...]]  # why a precision fails, by precision
    machine: Machine
    precisions: dict[str, Measured]
    offered: str | None  # in its place, where the race cannot tell which is the fastest
    doubt: str  # between which, and why


def read(folder: Path) -> Report:
    measured, verdict = read_measurements(str(folder)), Verdict.read(folder / VERDICT.name)
    by_name = {each.precision: each for each in measured.precisions}
    told = verdict.offered, verdict.doubt
    return Report(verdict.recommended, verdict.failures, measured.machine, by_name, *told)
