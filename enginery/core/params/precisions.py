import re
from typing import Literal, Self

from pydantic import AliasChoices, Field, model_validator

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
    """The limits of errors, and of what the task measures. Both of the latter are shares, whatever the task, so that
    another task needs no other names; `top1_agreement` and `accuracy_drop` are what they were called before."""

    cosine: float = Field(ge=-1, le=1)
    relative_error: float = Field(gt=0)
    agreement: Share = Field(validation_alias=AliasChoices("agreement", "top1_agreement"))
    metric_drop: float = Field(ge=-1, le=1, validation_alias=AliasChoices("metric_drop", "accuracy_drop"))


class MustPay(Section):
    """The speed that a precision must reach, beside that of another, at the batch size that engines are tuned for."""

    over: PrecisionName
    times: float = Field(gt=0)


class PrecisionParams(Section):
    made_from: Literal["simplified", "calibrated", "searched", "mixed"] = Field(alias="from")
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
