"""The JSON document of the stage search: which layers stay in floating point, why, and what that buys."""

from pathlib import Path

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.core.text import counted
from enginewright.precision.calibration.cache import Calibration

SEARCH = "search.json"  # beside a graph that a search has shaped
AIM = 0.75  # of what the thresholds allow, as the validation samples are others


class SearchedLayer(Record):
    """A layer that int8 could calculate."""

    name: str
    op_type: str
    work: float  # its share of the work of all of them, as estimated
    loss: float | None  # the relative error of the outputs if it alone is in int8; None if there was no time to measure


class Step(Record):
    """A set of layers that was tried: the first `spared` in the order of their worth."""

    spared: int
    work: float  # their share of the work
    cosine: float
    relative_error: float
    agreement: float | None  # None if answers of the task cannot be the same
    metric_drop: float | None  # of the task's metric; None if it cannot be measured
    looked_at: int  # so many of the samples to check by, the first ones: few where they show that far too much is lost
    changed: dict[str, int]  # all of these whose answer is another one, the worst first, and their places among them
    used: float  # the largest part of what a threshold allows, 1 being all of it
    at_most: float | None = None  # what other samples may take of the error allowed; None where nobody asked

    @property
    def is_promised(self) -> bool:
        """Tell whether it keeps the thresholds, as far as samples show that have chosen nothing."""
        return self.used <= AIM and (self.at_most is None or self.at_most <= 1)


class Search(Record):
    precision: str
    calibration: str  # the sha256 of the ranges it is for
    model: str | None  # and of the graph these were measured on, if known
    rescue: str  # and of what was rescued before
    layers: tuple[SearchedLayer, ...]  # in the order of the graph
    samples: tuple[int, int, int]  # those to measure layers by, to check sets of layers by, and to judge the answer by
    path: tuple[Step, ...]  # in the order in which they were tried
    spared: tuple[str, ...]  # the answer, in the order of their worth

    @property
    def chosen(self) -> Step:
        """Return the step that is the answer."""
        return next(step for step in self.path if step.spared == len(self.spared))


def spared_layers(found: Path, calibrated: Calibration, rescue: str) -> tuple[str, ...]:
    """Read which layers must stay in floating point. Refuse what was found with another graph, ranges or rescue."""
    search = Search.read(found)
    if (search.calibration, search.model, search.rescue) != (calibrated.cache_sha256, calibrated.model_sha256, rescue):
        raise EnginewrightError(
            f"{found} was searched with another calibration, model or rescue: run `dvc repro search` again"
        )
    return search.spared


def in_words(found: Search) -> str:
    """Return what is spared, and what that buys, in one sentence without its stop."""
    all_int8, *others = found.path
    if not found.layers:
        return f"no layer can be in {found.precision}"
    if not others:
        layers = "the only layer" if len(found.layers) == 1 else f"all {len(found.layers)} layers"
        return f"{layers} may be in {found.precision}, {_taken(all_int8)}"
    measured = sum(layer.loss is not None for layer in found.layers)
    unmeasured = "" if measured == len(found.layers) else f"; {measured} of {len(found.layers)} layers were measured"
    if not found.spared:
        closest = min(found.path, key=lambda step: max(step.used, step.at_most or step.used))
        return (
            f"no set of layers keeps the thresholds; the closest leaves {counted(closest.spared, 'layer')} in floating "
            f"point, {closest.work:.0%} of the work, {_taken(closest)}{unmeasured}"
        )
    share = f"{found.chosen.work:.0%} of the work"
    stay = "stays" if len(found.spared) == 1 else "stay"
    spared = f"{len(found.spared)} of {counted(len(found.layers), 'layer')} {stay} in floating point, {share}"
    all_of_them = f"all of them in {found.precision} would take {all_int8.used:.0%}"
    return f"{spared}, {_taken(found.chosen)}; {all_of_them}{unmeasured}"


def _taken(step: Step) -> str:
    others = "" if step.at_most is None else f", and on other samples up to {step.at_most:.0%} of the error allowed"
    return f"which takes {step.used:.0%} of what the thresholds allow{others}"
