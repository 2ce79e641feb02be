"""The JSON document of the stage rescue: what was tried before the search, and what each brought."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record, sha256
from enginewright.core.params.precisions import RescueName
from enginewright.core.text import first_few, in_one_line
from enginewright.data.sample_set import SampleSet
from enginewright.precision.calibration.cache import Calibration, require_match
from enginewright.precision.write_int8 import Rounded

RESCUE = "rescue.json"  # also beside a graph that is made of what was rescued


class Tried(Record):
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
    tried: tuple[Tried, ...]
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


class Rescued(NamedTuple):
    """The graph that a precision is made from, its ranges, and weights that are rounded already."""

    graph: Path
    ranges: Calibration
    rounded: Rounded
    spared: tuple[str, ...] = ()  # layers that stay in floating point


def open_rescued(simplified: Path, calibrated: Path, rescued: Path | None, samples: SampleSet) -> Rescued:
    """Return what was rescued, and what was calibrated where nothing was, or where there was no rescue (None)."""
    if rescued is None:
        return open_calibrated(simplified, calibrated, samples)
    has_graph = (rescued / "model.onnx").exists()
    given = (
        open_calibrated(rescued, rescued, samples) if has_graph else open_calibrated(simplified, calibrated, samples)
    )
    return given._replace(rounded=read_rounded(rescued), spared=Rescue.read(rescued / RESCUE).spared)


def open_calibrated(folder: Path, calibrated: Path, samples: SampleSet) -> Rescued:
    graph, ranges = folder / "model.onnx", Calibration.read(calibrated / "calibration.json")
    require_match(ranges, calibrated / "calibration.cache", graph, samples)
    return Rescued(graph, ranges, {})


def write_rounded(rounded: Rounded, folder: Path) -> None:
    """Write the bytes of weights. Names are numbered, as a tensor may be called what the function calls a parameter."""
    arrays: dict[str, Any] = {f"weights-{number}": array for number, array in enumerate(rounded.values())}
    np.savez(folder / "rounded.npz", names=np.array(list(rounded)), **arrays)


def read_rounded(folder: Path) -> Rounded:
    path = folder / "rounded.npz"
    if not path.exists():
        return {}
    try:
        with np.load(path) as held:
            return {str(name): np.asarray(held[f"weights-{number}"]) for number, name in enumerate(held["names"])}
    except Exception as error:  # NumPy and zipfile raise what the parsers beneath them do: of Python, of zlib
        raise EnginewrightError(f"{path} is damaged: `dvc repro` makes it again ({in_one_line(error)})") from None


def digest_of(rescued: Path) -> str:
    """Name what a rescue wrote by content. A graph depends on it by way of its search, which repeats this."""
    return sha256(*sorted(file for file in rescued.iterdir() if file.is_file()))


def digests_of(rounded: Rounded) -> dict[str, str]:
    return {name: hashlib.sha256(array.tobytes()).hexdigest() for name, array in rounded.items()}
