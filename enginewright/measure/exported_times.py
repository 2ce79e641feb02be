"""Timings of a GPU as NVIDIA's trtexec writes them with --exportTimes: a JSON list with an object for each inference.
TensorRT 10.3 to 11.1 write the same fields, in milliseconds. The benchmark writes such a file, too."""

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import REPORTS
from enginewright.engine.machine import Moments
from enginewright.measure.comparison import (
    AS_OPENED,
    BETWEEN_RUNS,
    Change,
    deviations_allowed,
    judge_factor,
    not_comparable,
)

Milliseconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]  # the end is beyond 30 years
WRITTEN_BY = "trtexec --exportTimes"
FILE = "times_batch_{}.json"  # in the folder of a benchmark, for each batch size
FILES = f"benchmark/*/{FILE.format('*')}"  # in the reports folder
BLOCKS, SHORTEST_BLOCK = 20, 5
NOT_NAMED = ""  # such a file does not say which precision it is of
LIMITS = """\
Timings alone were compared, and neither accuracy nor what was executed. They
do not say of which engine, precision and batch size they are, on which
machine, and what disturbed it."""


class TimedParts(BaseModel):
    """How long the parts of one inference took, in milliseconds. There are no copies where trtexec leaves them out."""

    model_config = ConfigDict(frozen=True, strict=True)

    copies_in: Milliseconds = Field(alias="h2dMs")
    compute: Milliseconds = Field(alias="computeMs")
    copies_out: Milliseconds = Field(alias="d2hMs")
    latency: Milliseconds = Field(alias="latencyMs")  # by the device's clock, from the first copy to the last one


class ExportedTimes(NamedTuple):
    place: str
    calls: tuple[TimedParts, ...]


def write_exported_times(calls: Iterable[Moments], path: Path) -> None:
    lines = ",\n".join(json.dumps({name: round(value, 6) for name, value in _fields(call).items()}) for call in calls)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def _fields(call: Moments) -> dict[str, float]:
    enqueuing, enqueued, copying_in, computing, copying_out, done = (1000 * moment for moment in call)
    return {
        "startEnqMs": enqueuing,
        "endEnqMs": enqueued,
        "startH2dMs": copying_in,
        "endH2dMs": computing,
        "startComputeMs": computing,
        "endComputeMs": copying_out,
        "startD2hMs": copying_out,
        "endD2hMs": done,
        "h2dMs": computing - copying_in,
        "computeMs": copying_out - computing,
        "d2hMs": done - copying_out,
        "latencyMs": done - copying_in,
    }


def read_exported_times(path: Path) -> ExportedTimes:
    try:
        calls = TypeAdapter(tuple[TimedParts, ...]).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        number, *field = first["loc"] or ("",)
        place = f"inference {number}, {field[0]}: " if field else ""
        raise EnginewrightError(f"{path} is not what {WRITTEN_BY} writes ({place}{first['msg']})") from None
    if not calls:
        raise EnginewrightError(f"{path} has no timings: measure for longer (--duration)")
    return ExportedTimes(str(path), calls)


def holds_exported_times(place: str) -> bool:
    """Tell whether this is a file with a list, as trtexec writes it: measurements.json has an object."""
    path = Path(place)
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(100).lstrip().startswith(b"[")


def find_exported_times(place: str) -> ExportedTimes:
    path = Path(place)
    found = [path] if path.is_file() else sorted(path.glob(FILES)) if path.is_dir() else []
    if not found:
        raise EnginewrightError(
            f"{place} is no file of {WRITTEN_BY}, as the other side is, and no reports folder with one: "
            f"on a GPU, `dvc repro` writes {REPORTS / FILES}"
        )
    if len(found) > 1:
        raise EnginewrightError(f"{place} has several files of timings: give one of {', '.join(map(str, found))}")
    return read_exported_times(found[0])


def compare_times(before: ExportedTimes, after: ExportedTimes, confidence: float) -> list[Change]:
    """Compare the median time with its copies, by the device's clock, and that of the compute alone."""
    latency, deviations = "latency with copies", deviations_allowed(confidence, figures=2)
    both = (before, after)
    uncopied = [times.place for times in both if not any(call.copies_in or call.copies_out for call in times.calls)]
    if uncopied:
        why = f"no copies were timed in {' and '.join(uncopied)}: trtexec does with --includeDataTransfers"
        first = not_comparable(NOT_NAMED, latency, why)
    else:
        first = _compare(latency, before, after, lambda call: call.latency, deviations)
    return [first, _compare("GPU compute", before, after, lambda call: call.compute, deviations)]


def _compare(
    figure: str, before: ExportedTimes, after: ExportedTimes, part: Callable[[TimedParts], float], deviations: float
) -> Change:
    medians, errors = [], []
    for times in (before, after):
        values = [part(call) for call in times.calls]
        if len(values) < BLOCKS * SHORTEST_BLOCK:
            needed = f"{BLOCKS * SHORTEST_BLOCK} are needed: measure for longer"
            return not_comparable(NOT_NAMED, figure, f"{times.place} has {len(values)} timings, and {needed}")
        # Calls that follow one another resemble one another: medians of blocks show the error of the whole median.
        blocks = [float(np.median(block)) for block in np.array_split(np.array(values), BLOCKS)]
        if min(blocks) == 0:
            return not_comparable(NOT_NAMED, figure, f"{times.place} says that it took no time")
        medians.append(median(values))
        errors.append(float(np.std(np.log(blocks), ddof=1)) / math.sqrt(BLOCKS))
    was, now = medians
    errors += [BETWEEN_RUNS, AS_OPENED] * 2  # two runs of one engine differ by more than the timings of each show
    return judge_factor(NOT_NAMED, figure, math.log(was / now), deviations * math.hypot(*errors), was, now)
