import re
from typing import Literal, Self

from pydantic import Field, model_validator

from enginery.core.errors import EngineryError
from enginery.core.params.reading import read_yaml, section_at
from enginery.core.params.section import PARAMS_FILE, Section, Share
from enginery.core.precisions import PrecisionName

Rest = Literal["fp32", "fp16"]


class Keep(Section):
    """The nodes that stay in high precision, by operator type or by regular expression."""

    op_types: tuple[str, ...]
    nodes: tuple[str, ...]
    rest: Literal["auto", Rest] = "fp32"  # of what is not quantized in a quantized graph

    @model_validator(mode="after")
    def _patterns_are_valid(self) -> Self:
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
    """How many times as fast as another precision one must be, at the batch size that engines are tuned for."""

    over: PrecisionName
    times: float = Field(gt=0)


class PrecisionParams(Section):
    made_from: Literal["simplified", "calibrated", "searched"] = Field(alias="from")
    keep: Keep
    thresholds: Thresholds
    must_pay: MustPay | None = None

    @property
    def is_searched(self) -> bool:
        """Tell whether a search says what is not quantized."""
        return self.made_from == "searched"

    @classmethod
    def read_for(cls, precision: str) -> Self:
        """Read the section of one precision."""
        listed = section_at("precisions", read_yaml(PARAMS_FILE), PARAMS_FILE)
        if precision not in listed:
            raise EngineryError(f"{PARAMS_FILE} has no section precisions.{precision}; it has {', '.join(listed)}")
        return cls.read_at(f"precisions.{precision}")
