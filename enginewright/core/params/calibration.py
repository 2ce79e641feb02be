from typing import Literal, get_args

from pydantic import Field

from enginewright.core.params.section import Section

Method = Literal["auto", "max", "typical", "percentile", "entropy", "mse"]
AUTO = "auto"  # for each tensor the one of the others that costs the outputs least
METHODS: tuple[str, ...] = tuple(method for method in get_args(Method) if method != AUTO)


class CalibrationParams(Section, place="calibration"):
    method: Method
    percentile: float = Field(gt=50, le=100)
    bins: int = Field(ge=2048, le=65536)
    batch: int = Field(ge=1)
    file: str | None
