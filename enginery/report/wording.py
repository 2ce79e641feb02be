"""Wording that several parts of the report share."""

from enginery.accuracy.records import Validation
from enginery.engine.machine import Machine


def percent(share: float | None) -> str:
    """Write a share. Without labels or scores accuracy is not known, which is not zero."""
    return "-" if share is None else f"{share:.2%}"


def accuracy_beside(found: Validation) -> str:
    if found.engine_accuracy is None or found.reference_accuracy is None:
        return "accuracy not measured (no labels or no scores)"
    return f"accuracy {found.engine_accuracy:.2%} where {found.reference} has {found.reference_accuracy:.2%}"


def device(machine: Machine) -> str:
    if machine.device == "cpu":
        return f"{machine.device_name} ({machine.cores} cores)"
    return (
        f"{machine.device_name} (compute capability {machine.capability}, driver {machine.driver}, CUDA {machine.cuda})"
    )
