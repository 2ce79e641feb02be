"""Compare the timings of a GPU in two files, of which either may be trtexec's."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from enginewright.core.errors import EnginewrightError
from enginewright.core.paths import REPORTS
from enginewright.regression.changes import Change, judge_factor, not_comparable
from enginewright.regression.speed_change import AS_OPENED, BETWEEN_RUNS, deviations_allowed
from enginewright.speed.exported_times import FILE, WRITTEN_BY, ExportedTimes, Parts, read_exported_times

FILES = f"benchmark/*/{FILE.format('*')}"  # in the reports folder
BLOCKS, SHORTEST_BLOCK = 20, 5
NOT_NAMED = ""  # such a file does not say which precision it is of
LIMITS = """\
Timings alone were compared, and neither accuracy nor what was executed. They
do not say of which engine, precision and batch size they are, on which
machine, and what disturbed it."""


def holds_exported_times(place: str) -> bool:
    """Tell whether this is a file with a list, as trtexec writes it: measurements.json has an object."""
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(100).lstrip().startswith(b"[")


def find_exported_times(place: str) -> ExportedTimes:
    """Read a file, or the only one in a reports folder."""
    path = Path(place)
    if path.is_file():
        return read_exported_times(path)
    found = sorted(path.glob(FILES)) if path.is_dir() else []
    if len(found) == 1:
        return read_exported_times(found[0])
    if found:
        raise EnginewrightError(f"{place} has several files of timings: give one of {', '.join(map(str, found))}")
    raise EnginewrightError(
        f"{place} is no file of {WRITTEN_BY}, as the other side is, and no reports folder with one: "
        f"on a GPU, `dvc repro` writes {REPORTS / FILES}"
    )


def compare_times(before: ExportedTimes, after: ExportedTimes, confidence: float) -> list[Change]:
    """Compare the median time with its copies, by the device's clock, and that of the compute alone."""
    latency, compute = "latency with copies", "GPU compute"
    deviations = deviations_allowed(confidence, figures=2)
    without = [times.place for times in (before, after) if not times.has_copies]
    if without:
        why = f"no copies were timed in {' and '.join(without)}: trtexec does with --includeDataTransfers"
        first = not_comparable(NOT_NAMED, latency, why)
    else:
        first = _compare(latency, before, after, lambda call: call.latency, deviations)
    return [first, _compare(compute, before, after, lambda call: call.compute, deviations)]


def _compare(
    figure: str, before: ExportedTimes, after: ExportedTimes, part: Callable[[Parts], float], deviations: float
) -> Change:
    series = [[part(call) for call in times.calls] for times in (before, after)]
    for times, values in zip((before, after), series, strict=True):
        if len(values) < BLOCKS * SHORTEST_BLOCK:
            why = (
                f"{times.place} has {len(values)} timings, and {BLOCKS * SHORTEST_BLOCK} are needed: measure for longer"
            )
            return not_comparable(NOT_NAMED, figure, why)
        if min(_medians_of_blocks(values)) == 0:
            return not_comparable(NOT_NAMED, figure, f"{times.place} says that it took no time")
    was, now = map(median, series)
    # A run differs from another one of the same engine by more than its own timings show: see speed_change.py.
    errors = [*map(_error_of_median, series), *[BETWEEN_RUNS, AS_OPENED] * 2]
    return judge_factor(NOT_NAMED, figure, math.log(was / now), deviations * math.hypot(*errors), was, now)


def _error_of_median(values: Sequence[float]) -> float:
    """Return the standard error of the median's logarithm, from blocks of calls in a row: calls that follow one another
    resemble one another, and would make it look smaller than it is."""
    return float(np.std(np.log(_medians_of_blocks(values)), ddof=1)) / math.sqrt(BLOCKS)


def _medians_of_blocks(values: Sequence[float]) -> list[float]:
    return [float(np.median(block)) for block in np.array_split(np.array(values), BLOCKS)]
