"""Decide whether the speeds of two runs were measured under the same conditions, so that they can be compared."""

from typing import Self

from enginewright.core.record import Record
from enginewright.core.text import counted
from enginewright.engine.machine import Machine
from enginewright.regression.measurements import Measured, Measurements
from enginewright.speed.noise_limits import machine_problems
from enginewright.speed.records import SAME_PACE, Benchmark, Ratio

VERSIONS = ("runtime_version", "driver", "cuda", "operating_system")  # may differ: a comparison shows what they do


class Identity(Record):
    """What must be the same of the machines of two runs."""

    runtime: str
    device_name: str
    cores: int

    @classmethod
    def of(cls, machine: Machine) -> Self:
        return cls(**machine.model_dump(include=set(cls.model_fields)))


def other_machine(before: Machine, after: Machine) -> str | None:
    """Return how the machines of two runs differ, or None if they are the same."""
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in Identity.model_fields)
    return next((f"another {name.replace('_', ' ')}: {was} and {now}" for name, was, now in pairs if was != now), None)


def same_versions(before: Machine, after: Machine) -> bool:
    return all(getattr(before, name) == getattr(after, name) for name in VERSIONS)


def other_settings(before: Benchmark, after: Benchmark) -> str | None:
    """Return how the settings of two benchmarks differ, or None if their ratios can be compared."""
    if before.threads != after.threads:
        return f"{counted(before.threads, 'thread')} and {after.threads}"
    if before.pytorch != after.pytorch:
        return f"another PyTorch: {before.pytorch} and {after.pytorch}"
    return None if ratio_pairs(before, after) else "no baseline and batch size in common"


def ratio_pairs(before: Benchmark, after: Benchmark) -> list[tuple[Ratio, Ratio]]:
    """Pair the ratios of two benchmarks that have the same baseline and batch size."""
    later = {(ratio.baseline, ratio.batch): ratio for ratio in after.ratios}
    return [(old, later[key]) for old in before.ratios if (key := (old.baseline, old.batch)) in later]


def best_pace(*runs: Measurements) -> float:
    """Return the best machine pace at which any precision was timed: how fast the machine can be."""
    paces = [entry.benchmark.pace.microseconds for run in runs for entry in run.precisions]
    return min((pace for pace in paces if pace is not None), default=0.0)


def slower_machine(timed: Benchmark, best: float) -> str | None:
    """Return why the machine was slower than it can be, or None."""
    # Two runs on a slow machine cannot be compared with each other either: ratios scatter several times as much there.
    if problems := machine_problems(timed):
        return f"{problems[0]} while one was timed: measure again"
    if timed.pace.microseconds is None:
        return "the machine never kept to one pace while one was timed: measure again"
    if timed.pace.microseconds > SAME_PACE * best:
        return f"the machine was {timed.pace.microseconds / best:.2f} times as slow while one was timed: measure again"
    return None


def runs_the_same(old: Measured, new: Measured) -> bool:
    """Tell whether two runs used the same engine file in the same way."""
    return bool(old.files) and old.files == new.files and old.benchmark.cuda_graph == new.benchmark.cuda_graph
