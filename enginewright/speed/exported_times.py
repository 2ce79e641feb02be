"""Timings of a GPU as NVIDIA's trtexec writes them with --exportTimes: a JSON list with an object for each inference.
TensorRT 10.3 to 11.1 write the same fields, in milliseconds."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from enginewright.core.errors import EnginewrightError
from enginewright.engine.moments import Moments

Milliseconds = Annotated[float, Field(ge=0, lt=1e12, allow_inf_nan=False)]  # the end is beyond 30 years
WRITTEN_BY = "trtexec --exportTimes"
FILE = "times_batch_{}.json"  # in the folder of a benchmark, for each batch size


class Parts(BaseModel):
    """How long the parts of one inference took, in milliseconds. There are no copies where trtexec leaves them out."""

    model_config = ConfigDict(frozen=True, strict=True)

    copies_in: Milliseconds = Field(alias="h2dMs")
    compute: Milliseconds = Field(alias="computeMs")
    copies_out: Milliseconds = Field(alias="d2hMs")
    latency: Milliseconds = Field(alias="latencyMs")  # by the device's clock, from the first copy to the last one


class ExportedTimes(NamedTuple):
    place: str
    calls: tuple[Parts, ...]

    @property
    def has_copies(self) -> bool:
        return any(call.copies_in or call.copies_out for call in self.calls)


def write_exported_times(calls: Iterable[Moments], path: Path) -> None:
    """Write a line for each inference, as trtexec does."""
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
        calls = TypeAdapter(tuple[Parts, ...]).validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        number, *field = first["loc"] or ("",)
        place = f"inference {number}, {field[0]}: " if field else ""
        raise EnginewrightError(f"{path} is not what {WRITTEN_BY} writes ({place}{first['msg']})") from None
    if not calls:
        raise EnginewrightError(f"{path} has no timings: measure for longer (--duration)")
    return ExportedTimes(str(path), calls)
