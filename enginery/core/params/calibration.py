from typing import Literal

from pydantic import Field

from enginery.core.params.section import Section

Method = Literal["max", "percentile", "entropy", "mse"]


class CalibrationParams(Section, place="calibration"):
    method: Method
    percentile: float = Field(gt=50, le=100)
    bins: int = Field(ge=2048, le=65536)
    batch: int = Field(ge=1)
    file: str | None
