"""The JSON documents of the stages rescue, search and mix: what was tried, what each try brought, and the answer."""

from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import HALVES, PrecisionName
from enginewright.core.files import Record, sha256
from enginewright.core.params.precisions import Keep, RescueName, Rest
from enginewright.core.text import counted, first_few, in_one_line
from enginewright.data.feeds import load_arrays
from enginewright.engine.record import Speedup
from enginewright.precision.write_int8 import Rounded

RESCUE = "rescue.json"  # also beside a graph that is made of what was rescued
SEARCH = "search.json"  # beside a graph that a search has shaped
MIX = "mix.json"  # beside a graph that is mixed
JUDGING = 256  # samples at most, which tell what others may lose
AIM = 0.75  # of what the thresholds allow, as the validation samples are others
Assignment = tuple[PrecisionName, ...]  # the type of each block


class TriedRescue(Record):
    names: tuple[RescueName, ...]  # one after the other
    error: float | None  # the relative error of the outputs; None if there is nothing in the graph to change
    at_once: float | None  # the same of all samples at once, which those with the largest outputs decide

    def in_words(self) -> str:
        return f"{' and '.join(self.names)} {errors_in_words(self.error, self.at_once)}"


class Rescue(Record):
    precision: str
    samples: tuple[int, int]  # those that rescues were fitted to, and those that confirm them
    error: float  # of the outputs as calibrated, relative to their size: the mean over samples
    at_once: float  # the same of all samples at once
    tried: tuple[TriedRescue, ...]
    kept: tuple[RescueName, ...]
    spared: tuple[str, ...] = ()  # the layers that stay in floating point, if `spare` is kept
    enough: float | None  # the error below which only what is quick was tried, or None if all was asked for by name

    def in_words(self) -> str:
        """Return what was tried, in one sentence without its stop."""
        if not self.tried:
            return f"as calibrated, the outputs have an error of {self.error:.2%}: no rescue is asked for"
        error = errors_in_words(self.error, self.at_once)
        tried = ", ".join(f"with {each.in_words()}" for each in self.tried)
        kept = " and ".join(self.kept) or "nothing"
        layers = f", which leaves {first_few(self.spared)} in floating point" if self.spared else ""
        return f"as calibrated, the outputs have an error of {error}, {tried}; {kept} is kept{layers}"


def errors_in_words(error: float | None, at_once: float | None) -> str:
    """Return the mean over samples, and in parentheses the error of all samples at once."""
    return "nothing changes" if error is None or at_once is None else f"{error:.2%} ({at_once:.2%})"


ROUNDED = "rounded.npz"  # the bytes of weights that a rescue has rounded


def read_rounded(folder: Path) -> Rounded:
    path = folder / ROUNDED
    try:
        return load_arrays(path) if path.exists() else {}
    except Exception as error:  # NumPy and zipfile raise what the parsers beneath them do: of Python, of zlib
        raise EnginewrightError(f"{path} is damaged: `dvc repro` makes it again ({in_one_line(error)})") from None


def digest_of(rescued: Path) -> str:
    """Name what a rescue wrote by content. A graph depends on it by way of its search, which repeats this."""
    return sha256(*sorted(file for file in rescued.iterdir() if file.is_file()))


class SearchedLayer(Record):
    """A layer that the precision could calculate."""

    name: str
    op_type: str
    work: float  # its share of the work of all of them, as estimated
    loss: float | None  # the relative error of the outputs if it alone is in it; None if there was no time to measure


class Step(Record):
    """A set of layers that was tried: the first `spared` in the order of their worth."""

    spared: int
    work: float  # their share of the work
    cosine: float
    relative_error: float
    agreement: float | None  # None if answers of the task cannot be the same
    metric_drop: float | None  # of the task's metric; None if it cannot be measured
    looked_at: int  # so many of the samples to check by, the first ones: few where they show that far too much is lost
    spent: float  # the largest part of what a threshold allows, 1 being all of it
    at_most: float | None = None  # what other samples may take of the error allowed; None where nobody asked

    @property
    def is_promised(self) -> bool:
        """Tell whether it keeps the thresholds, as far as samples show by ranges without their own."""
        return self.spent <= AIM and (self.at_most is None or self.at_most <= 1)

    def in_words(self) -> str:
        others = "" if self.at_most is None else f", and on other samples up to {self.at_most:.0%} of the error allowed"
        return f"which takes {self.spent:.0%} of what the thresholds allow{others}"


class Search(Record):
    precision: str
    calibration: str = ""  # the sha256 of the ranges it is for, if there are any
    model: str | None = None  # and of the graph these were measured on, if known
    rescue: str = ""  # and of what was rescued before
    layers: tuple[SearchedLayer, ...]  # in the order of the graph
    samples: tuple[int, int, int]  # those to measure layers by, to check sets of layers by, and to judge the answer by
    path: tuple[Step, ...]  # in the order in which they were tried
    spared: tuple[str, ...]  # the answer, in the order of their worth
    rest: Rest | None = None  # the type of the rest, if it must be another than the compiler's

    @property
    def chosen(self) -> Step:
        """Return the step that is the answer."""
        return next(step for step in self.path if step.spared == len(self.spared))

    def in_words(self) -> str:
        """Return what is spared, and what that buys, in one sentence without its stop."""
        all_low, *others = self.path
        high = "float32" if self.precision in HALVES else "floating point"
        if not self.layers:
            return f"no layer can be in {self.precision}"
        if not others:
            layers = "the only layer" if len(self.layers) == 1 else f"all {len(self.layers)} layers"
            return f"{layers} may be in {self.precision}, {all_low.in_words()}"
        measured = sum(layer.loss is not None for layer in self.layers)
        unmeasured = "" if measured == len(self.layers) else f"; {measured} of {len(self.layers)} layers were measured"
        if not self.spared:
            closest = min(self.path, key=lambda step: max(step.spent, step.at_most or step.spent))
            return (
                f"no set of layers keeps the thresholds; the closest leaves {counted(closest.spared, 'layer')} in "
                f"{high}, {closest.work:.0%} of the work, {closest.in_words()}{unmeasured}"
            )
        share = f"{self.chosen.work:.0%} of the work"
        stay = "stays" if len(self.spared) == 1 else "stay"
        spared = f"{len(self.spared)} of {counted(len(self.layers), 'layer')} {stay} in {high}, {share}"
        all_of_them = f"all of them in {self.precision} would take {all_low.spent:.0%}"
        seen = min(step.spared for step in self.path if step.spent <= AIM)
        few = f"; {seen} must for the {self.samples[2]} samples seen: raise samples.calibration, and fewer may stay"
        more_would_tell = self.samples[2] < JUDGING and 2 * seen < len(self.spared)
        return f"{spared}, {self.chosen.in_words()}; {all_of_them}{few * more_would_tell}{unmeasured}"


class BlockTimes(Record):
    """A part of the graph, and the milliseconds of its layers in each type: the medians over the traces."""

    first: str  # the names of its first and last node
    last: str
    milliseconds: dict[PrecisionName, float]


class Candidate(Record):
    """A type for each block, and what that loses and gains."""

    assignment: Assignment
    spent: float  # the largest part of what a threshold allows, on calibration samples
    promised: Speedup  # over all int8, by the sums of layer times, with the interval over the turns
    raced: float | None  # over all int8, in one race of all; None if it breaks a threshold, or nothing was raced


class MixChoice(Record):
    candidates: tuple[Candidate, ...]  # first one for each type, which is all in it
    mixed: int | None  # the number of the best candidate that mixes types; None if there is none to try
    rival: PrecisionName  # the fastest of those in one type that keep the thresholds
    promised: Speedup | None  # the mix over its rival, by the layer times
    delivered: Speedup | None  # the same in a race, with its interval; None if nothing was raced

    @property
    def delivers(self) -> bool:
        """Tell whether the mix is faster than each type alone, beyond its interval."""
        return self.delivered is not None and self.delivered.low > 1

    @property
    def taken(self) -> Assignment | None:
        """Return the mix if it is made: if it won, or nothing was raced."""
        if self.mixed is None or (self.delivered and not self.delivers):
            return None
        return self.candidates[self.mixed].assignment

    @property
    def made_as(self) -> PrecisionName:
        """Return how the answer is made: a mix as int8 with nodes in other types."""
        return "int8" if self.taken else self.rival


class Mix(MixChoice):
    precision: str
    types: tuple[PrecisionName, ...]  # that are mixed, int8 first
    machine: str  # that layers were timed on, and mixes raced if they were
    traces: str | None  # where layer times are from, or None: this machine
    batch: int
    calibration: str  # the sha256 of the ranges it is for
    model: str | None  # and of the graph these were measured on, if known
    blocks: tuple[BlockTimes, ...]
    keep: Keep  # of the precision that it is made as
    is_searched: bool  # int8 follows a search, and so a rescue
    spared: tuple[str, ...]  # the nodes that a search has left in floating point
    floating: dict[PrecisionName, tuple[str, ...]]  # the nodes that are in each float type; none if all are in one

    @property
    def is_one(self) -> bool:
        """Tell whether it is the graph of another precision."""
        return not self.floating

    def in_words(self) -> str:
        """Return what was mixed, what that promised and what it delivered, without the last stop."""
        if self.mixed is None:
            no_mix = (
                "no mix of them keeps the thresholds on calibration samples"
                if len(self.candidates) > len(self.types)
                else "by the times of their layers no mix of them would be faster"
            )
            return f"{self.precision} is {self._rival()}: {no_mix}"
        assignment = self.candidates[self.mixed].assignment
        base, first, *more = (name for name in self.types if name in assignment)
        others = "".join(f" and {assignment.count(name)} in {name}" for name in more)
        mixed = f"{base} with {assignment.count(first)} of {len(assignment)} parts in {first}{others}"
        promised = f"layer times promised {_times(self.promised)} the speed of {self.rival}"
        if self.delivered is None:
            why = f"because layer times are those of {self.traces}, from {self.machine}"
            return f"{self.precision} is {mixed}; {promised}, and nothing was raced, {why}"
        delivered = f"{promised}, and a race delivered {_times(self.delivered)}"
        if self.delivers:
            return f"{self.precision} is {mixed}: {delivered}"
        return f"{self.precision} is {self._rival()}: for the best mix, {mixed}, {delivered}"

    def _rival(self) -> str:
        """Name the rival, and say why it is the one."""
        others = [pair for pair in zip(self.types, self.candidates, strict=False) if pair[0] != self.rival]
        slower = [name for name, each in others if each.spent <= AIM]
        lost = [f"{name} takes {each.spent:.0%}" for name, each in others if each.spent > AIM]
        why = [f"faster than {' and '.join(slower)}"] if slower else []
        why += [f"while {' and '.join(lost)} of what the thresholds allow"] if lost else []
        return ", ".join([self.rival, *why])


def _times(times: Speedup | None) -> str:
    return f"{times.middle:.3f} times ({times.low:.3f} to {times.high:.3f})" if times else "nothing"
