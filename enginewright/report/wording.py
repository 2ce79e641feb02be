"""Wording that several parts of the report share, and what makes ratios noisy."""

from itertools import chain
from typing import NamedTuple

from enginewright.core.text import counted
from enginewright.engine.machine import Machine
from enginewright.measure.records import SAME_PACE, Ratio, Validation
from enginewright.measure.timing import WIDEST_INTERVAL, broken_limits, machine_problems
from enginewright.report.evidence import Evidence, Findings


def engine_metric(found: Validation) -> str:
    return "-" if found.main is None else found.main.written(found.main.engine)


def device(machine: Machine) -> str:
    if machine.device == "cpu":
        return f"{machine.device_name} ({counted(machine.cores, 'core')})"
    return (
        f"{machine.device_name} (compute capability {machine.capability}, driver {machine.driver}, CUDA {machine.cuda})"
    )


class Noise(NamedTuple):
    """The number of noisy ratios among some, and each reason once, however many ratios share it."""

    noisy: int
    ratios: int
    why: tuple[str, ...]


def noise_at(findings: Findings, entry: Evidence, batch: int) -> Noise:
    """Return every reason for noise of one precision at one batch size."""
    found = [reasons(findings, entry, entry.ratio(batch, name)) for name in findings.baselines]
    return Noise(sum(map(bool, found)), len(found), tuple(dict.fromkeys(chain(*found))))


def noisy_as_quoted(findings: Findings, entry: Evidence) -> bool:
    """Tell whether the race leaves the speed of a precision beside the first baseline open."""
    times = findings.quoted(entry)
    return (times.high - times.low) / times.median > WIDEST_INTERVAL


def reasons(findings: Findings, entry: Evidence, ratio: Ratio) -> list[str]:
    """Return why this ratio is noisy; nothing if it is not."""
    return broken_limits(ratio, entry.benchmark) + machine_reasons(findings, entry)


def machine_reasons(findings: Findings, entry: Evidence) -> list[str]:
    """Return what was wrong with the machine while this precision was timed, at any batch size."""
    found, pace = machine_problems(entry.benchmark), entry.benchmark.pace.microseconds
    best = min(one.benchmark.pace.microseconds or float("inf") for one in findings.precisions)
    if pace and pace > SAME_PACE * best:
        found.append(f"the machine was {pace / best:.2f} times as slow as for another precision")
    if pace is None:
        found.append("the machine never kept to one pace")
    return found
