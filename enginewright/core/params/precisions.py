import re
from typing import Annotated, Literal, Self, get_args

from pydantic import AliasChoices, BeforeValidator, Field, model_validator

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.params.section import PARAMS_FILE, Section, Share, read_yaml, section_at

Rest = Literal["fp32", "fp16"]
RescueName = Literal["equalize", "round", "spare"]
RESCUES: tuple[RescueName, ...] = get_args(RescueName)  # in the order in which they are tried
Rescues = Literal["auto", "none"] | tuple[RescueName, ...]


def rescues_of(asked: Rescues) -> tuple[RescueName, ...]:
    """Return the rescues to try."""
    if asked == "none":
        return ()
    return tuple(name for name in RESCUES if asked == "auto" or name in asked)


def _rescues_exist(given: object) -> object:
    """Refuse a rescue that there is not, in one sentence that lists those that there are."""
    if given in ("auto", "none"):
        return given
    names, known = given if isinstance(given, list | tuple) else [given], ", ".join(RESCUES)
    for name in names:
        if name not in RESCUES:
            raise ValueError(f"there is no rescue '{name}': it is auto, none, or a list of some of {known}")
    if names is not given or not names or len(set(names)) < len(names):
        raise ValueError(f"{given} is no list of different rescues, such as [{known}], and neither auto nor none")
    return given


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
    rescue: Annotated[Rescues, BeforeValidator(_rescues_exist)] = "none"

    @property
    def is_searched(self) -> bool:
        """Tell whether a search says what is not quantized, after rescues."""
        return self.made_from == "searched"

    @classmethod
    def read_for(cls, precision: str) -> Self:
        """Read the section of one precision."""
        listed = section_at("precisions", read_yaml(PARAMS_FILE), PARAMS_FILE)
        if precision not in listed:
            raise EnginewrightError(f"{PARAMS_FILE} has no section precisions.{precision}; it has {', '.join(listed)}")
        return cls.read_at(f"precisions.{precision}")


Method = Literal["auto", "max", "typical", "percentile", "entropy", "mse"]
AUTO = "auto"  # for each tensor the one of the others that costs the outputs least
METHODS: tuple[str, ...] = tuple(method for method in get_args(Method) if method != AUTO)


class CalibrationParams(Section, place="calibration"):
    method: Method
    percentile: float = Field(gt=50, le=100)
    bins: int = Field(ge=2048, le=65536)
    batch: int = Field(ge=1)
    file: str | None


class SearchParams(Section):
    """The time to look for the layers that a precision must leave in floating point."""

    seconds: float = Field(gt=0)

    @classmethod
    def read_for(cls, precision: str) -> Self:
        return cls.read_at(f"search.{precision}")


class MixParams(Section):
    """Say which precision is mixed with int8, and how candidates are raced."""

    floating: Literal["fp32", "fp16", "bf16"]
    seconds: float = Field(gt=0)  # for each candidate
    traces: str | None  # a folder in data/traces, or None: those of this machine

    @classmethod
    def read_for(cls, precision: str) -> Self:
        return cls.read_at(f"mix.{precision}")
