"""Wording that several parts of the report share."""

from enginewright.accuracy.records import Validation
from enginewright.core.text import counted
from enginewright.engine.machine import Machine


def percent(share: float | None) -> str:
    """Write a share. What was not measured is not zero."""
    return "-" if share is None else f"{share:.2%}"


def metric_beside(found: Validation) -> str:
    if not (main := found.main):
        return f"{found.metric} not measured ({found.lacking})"
    return f"{main.name} {main.written(main.engine)} where {found.reference} has {main.written(main.reference)}"


def engine_metric(found: Validation) -> str:
    return "-" if found.main is None else found.main.written(found.main.engine)


def device(machine: Machine) -> str:
    if machine.device == "cpu":
        return f"{machine.device_name} ({counted(machine.cores, 'core')})"
    return (
        f"{machine.device_name} (compute capability {machine.capability}, driver {machine.driver}, CUDA {machine.cuda})"
    )
