"""The JSON document of the stage mix: the type of each part of the graph, and what that gains."""

from typing import Self

from pydantic import model_validator

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.files import Record
from enginewright.core.params.precisions import Keep
from enginewright.precision.calibration.cache import Calibration
from enginewright.precision.search.records import AIM

Assignment = tuple[PrecisionName, ...]  # the type of each block
MIX = "mix.json"  # beside a graph that is mixed


class Speedup(Record):
    """How many times as fast one engine is as another, and the interval of that."""

    middle: float
    low: float
    high: float

    def in_figures(self) -> str:
        return f"{self.middle:.3f} ({self.low:.3f} to {self.high:.3f})"


class BlockTimes(Record):
    """A part of the graph, and the milliseconds of its layers in each type: the medians over the traces."""

    first: str  # the names of its first and last node
    last: str
    milliseconds: dict[PrecisionName, float]


class Candidate(Record):
    """A type for each block, and what that loses and gains."""

    assignment: Assignment
    used: float  # the largest part of what a threshold allows, on calibration samples
    promised: Speedup  # over all int8, by the sums of layer times, with the interval over the turns
    raced: float | None  # over all int8, in one race of all; None if it breaks a threshold, or nothing was raced


class Mix(Record):
    precision: str
    types: tuple[PrecisionName, ...]  # that are mixed, int8 first
    machine: str  # that layers were timed on, and mixes raced if they were
    traces: str | None  # the folder that layer times are from, or None: this machine
    batch: int
    calibration: str  # the sha256 of the ranges it is for
    model: str | None  # and of the graph these were measured on, if known
    blocks: tuple[BlockTimes, ...]
    candidates: tuple[Candidate, ...]  # first one for each type, which is all in it
    mixed: int | None  # the number of the best candidate that mixes types; None if there is none to try
    rival: PrecisionName  # the fastest of those in one type that keep the thresholds
    promised: Speedup | None  # the mix over its rival, by the layer times
    delivered: Speedup | None  # the same in a race, with its interval; None if nothing was raced
    made_as: PrecisionName  # how the answer is made: a mix as int8 with nodes in other types
    keep: Keep  # of that precision
    is_searched: bool  # int8 follows a search, and so a rescue
    spared: tuple[str, ...]  # the nodes that a search has left in floating point
    floating: dict[PrecisionName, tuple[str, ...]]  # the nodes that are in each float type; none if all are in one

    @model_validator(mode="after")
    def _has_its_mix(self) -> Self:
        mixes = [number for number, each in enumerate(self.candidates) if len({*each.assignment} & {*self.types}) > 1]
        if self.mixed not in (None, *mixes):
            raise ValueError(f"mixed: candidate {self.mixed} mixes nothing")
        return self

    @property
    def delivers(self) -> bool:
        """Tell whether the mix is faster than each type alone, beyond its interval."""
        return self.delivered is not None and self.delivered.low > 1

    @property
    def is_one(self) -> bool:
        """Tell whether it is the graph of another precision."""
        return not self.floating

    def spared_for(self, calibrated: Calibration) -> tuple[str, ...]:
        """Return what a search has spared. Refuse what was found with other ranges or another graph."""
        if (self.calibration, self.model) != (calibrated.cache_sha256, calibrated.model_sha256):
            raise EnginewrightError(
                f"{self.precision} was mixed with another calibration or model: run `dvc repro` again"
            )
        return self.spared


def in_words(mix: Mix) -> str:
    """Return what was mixed, what that promised and what it delivered, without the last stop."""
    if mix.mixed is None:
        no_mix = (
            "no mix of them keeps the thresholds on calibration samples"
            if len(mix.candidates) > len(mix.types)
            else "by the times of their layers no mix of them would be faster"
        )
        return f"{mix.precision} is {_rival(mix)}: {no_mix}"
    mixed = _parts(mix, mix.candidates[mix.mixed].assignment)
    promised = f"layer times promised {_times(mix.promised)} the speed of {mix.rival}"
    if mix.delivered is None:
        why = f"because layer times are those of {mix.traces}, from {mix.machine}"
        return f"{mix.precision} is {mixed}; {promised}, and nothing was raced, {why}"
    delivered = f"{promised}, and a race delivered {_times(mix.delivered)}"
    if mix.delivers:
        return f"{mix.precision} is {mixed}: {delivered}"
    return f"{mix.precision} is {_rival(mix)}: for the best mix, {mixed}, {delivered}"


def _parts(mix: Mix, assignment: Assignment) -> str:
    base, first, *more = (name for name in mix.types if name in assignment)
    others = "".join(f" and {assignment.count(name)} in {name}" for name in more)
    return f"{base} with {assignment.count(first)} of {len(assignment)} parts in {first}{others}"


def _rival(mix: Mix) -> str:
    """Name the rival, and say why it is the one."""
    used = {name: each.used for name, each in zip(mix.types, mix.candidates, strict=False) if name != mix.rival}
    slower = [name for name in used if used[name] <= AIM]
    lost = [f"{name} takes {used[name]:.0%}" for name in used if used[name] > AIM]
    why = [f"faster than {' and '.join(slower)}"] if slower else []
    why += [f"while {' and '.join(lost)} of what the thresholds allow"] if lost else []
    return ", ".join([mix.rival, *why])


def _times(times: Speedup | None) -> str:
    return f"{times.middle:.3f} times ({times.low:.3f} to {times.high:.3f})" if times else "nothing"
