"""The sections under `precisions`."""

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from enginery.core.errors import EngineryError
from enginery.core.params.reading import read_yaml, section_at
from enginery.core.params.section import PARAMS_FILE, Section, Share
from enginery.core.precisions import PrecisionName

Rest = Literal["fp32", "fp16"]


class Keep(Section):
    """What stays in high precision: operator types, node names (regular expressions); and in which, if quantized."""

    op_types: tuple[str, ...]
    nodes: tuple[str, ...]
    rest: Literal["auto", Rest] = "fp32"

    @model_validator(mode="after")
    def _is_readable(self) -> Self:
        for pattern in self.nodes:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"nodes: '{pattern}' is not a regular expression: {error}") from None
        return self


class Thresholds(Section):
    cosine: float = Field(ge=-1, le=1)
    relative_error: float = Field(gt=0)
    top1_agreement: Share
    accuracy_drop: float = Field(ge=-1, le=1)


class MustPay(Section):
    """Over which precision one must be how many times as fast, at the batch size that engines are tuned for."""

    over: PrecisionName
    times: float = Field(gt=0)


class PrecisionParams(Section):
    made_from: Literal["simplified", "calibrated"] = Field(alias="from")
    keep: Keep
    thresholds: Thresholds
    must_pay: MustPay | None = None

    @classmethod
    def read_for(cls, precision: str) -> Self:
        """Read the section of one precision, as it stands under `precisions`."""
        listed = section_at("precisions", read_yaml(PARAMS_FILE), PARAMS_FILE)
        if precision not in listed:
            raise EngineryError(f"{PARAMS_FILE} has no section precisions.{precision}; it has {', '.join(listed)}")
        return cls.read_at(f"precisions.{precision}")
