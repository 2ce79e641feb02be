"""The sections `precisions`, `calibration`, `search` and `mix`."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from enginewright.core.facts import PrecisionName
from enginewright.core.params.section import Section, Share

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

    op_types: tuple[str, ...] = ()
    """operator types that stay in high precision"""
    nodes: tuple[str, ...] = ()
    """names of nodes that do, as regular expressions"""
    rest: Literal["auto", Rest] = "fp32"
    """what is not quantized: fp16, fp32, or auto, which is fp16 for TensorRT, where float32 is slow, and fp32
    elsewhere"""

    def naming(self, names: Iterable[str]) -> Self:
        """Return the same with the nodes of these names."""
        return self.model_copy(update={"nodes": (*self.nodes, *map(re.escape, names))})

    @property
    def whole_names(self) -> list[str]:
        """Return the patterns of nodes for ModelOpt, to which the beginning of a name is enough."""
        return [rf"(?:{pattern})\Z" for pattern in self.nodes]

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
    another task needs no other names."""

    cosine: float = Field(ge=-1, le=1)
    """of the outputs and PyTorch's, at least"""
    relative_error: float = Field(gt=0)
    """of the outputs, at most"""
    agreement: Share
    """the share of samples with PyTorch's answer, at least"""
    metric_drop: float = Field(ge=-1, le=1)
    """what the metric may lose, at most"""


class MustPay(Section):
    """The speed that a precision must reach, beside that of another, at the batch size that engines are tuned for."""

    over: PrecisionName
    """the other precision"""
    times: float = Field(gt=0)
    """as fast, at least"""


class PrecisionParams(Section):
    """A precision. What is not given is as DEFAULTS has it for the precision, and not here: it has no name here."""

    made_from: Literal["simplified", "calibrated", "searched", "mixed", "given"] = Field(alias="from")
    """the graph that it starts from; given: the model's own Q/DQ nodes, as they are"""
    keep: Keep = Keep()
    """what stays in high precision"""
    thresholds: Thresholds
    """against PyTorch over the validation set"""
    cure: bool = False
    """true: if the engine differs from its graph, find what cures it, into cures/, which the next run follows;
    `search.P.cure` says the same"""
    must_pay: MustPay | None = None
    """null, or {over: bf16, times: 1.1}: fail unless it is 1.1 times as fast as bf16"""
    rescue: Annotated[Rescues, BeforeValidator(_rescues_exist)] = "none"
    """what makes it closer before a search: none, auto, or a list of equalize (scale channels alike), round (round
    weights to what the outputs need) and spare (leave the last layers in floating point, if that takes no time); kept
    where it helps"""

    @property
    def is_searched(self) -> bool:
        """Tell whether a search says what is not quantized, after rescues."""
        return self.made_from == "searched"


USUAL = ("fp32", "fp16", "bf16", "int8")  # where params.yaml names none


def _defaults(made_from: str, least: tuple[float, float], most: tuple[float, float], **more: Any) -> dict[str, Any]:
    """Return a section with its thresholds: the least cosine and agreement, the most relative error and drop."""
    (cosine, agreement), (error, drop) = least, most
    limits = {"cosine": cosine, "relative_error": error, "agreement": agreement, "metric_drop": drop}
    return {"from": made_from, "thresholds": limits, **more}


# Errors are bounded by a multiple of what the number format itself causes on ImageNet classifiers, so a failure means
# that something is wrong. Those of int4, mxfp8 and nvfp4 are bounded by multiples of what two small transformers lost.
# A cosine is what a relative error of a little more leaves: 0.99 that of 0.14. Note the resolution of the set: one of
# 512 images is 0.2 %. MLPerf's target is to keep 99 % of a metric.
REST: dict[str, Any] = {"keep": {"op_types": [], "nodes": [], "rest": "auto"}}
DEFAULTS = {
    # 24 bits of mantissa leave 1e-6. One image of 512 may be undecided between two classes. See `as_executed` for TF32.
    "fp32": _defaults("simplified", least=(0.99999, 0.998), most=(1.0e-3, 0.002)),
    # 11 bits of mantissa leave 1e-4 to 2e-3 over 50 layers. Two images of 512 may change.
    "fp16": _defaults("simplified", least=(0.9999, 0.995), most=(5.0e-3, 0.005)),
    # 8 bits of mantissa leave 2e-3 to 1.5e-2. Half of what int8 may lose of agreement, and some.
    "bf16": _defaults("simplified", least=(0.999, 0.98), most=(4.0e-2, 0.01)),
    # 8 bits over a calibrated range leave 5e-3 to 5e-2. Published int8 ResNets keep about this agreement.
    "int8": _defaults("searched", least=(0.99, 0.97), most=(0.15, 0.01), rescue="auto", **REST),
    # 4 bits of mantissa leave 6e-2 on noise. A little less agreement than int8: fewer bits.
    "fp8": _defaults("calibrated", least=(0.99, 0.95), most=(0.2, 0.01), rescue="auto", **REST),
    # Weights of 8 bits lost 4e-3 to 1.2e-2, and nothing else is rounded.
    "w8": _defaults("simplified", least=(0.998, 0.98), most=(5.0e-2, 0.01), **REST),
    # Weights of 4 bits, which need no calibration, lost 3e-2 to 4e-2, and kept 98.4 % of the answers and more.
    "int4": _defaults("simplified", least=(0.99, 0.96), most=(0.15, 0.01), **REST),
    # Each block's scale is found while the engine runs. 8 bits lost 2e-2 to 3e-2, and kept 98.6 % and more.
    "mxfp8": _defaults("simplified", least=(0.995, 0.96), most=(0.1, 0.01), **REST),
    # Calibrated for the scale of each tensor's scales. 4 bits, half of fp8's, lost 6e-2 to 9e-2, and kept 97 %.
    "nvfp4": _defaults("calibrated", least=(0.96, 0.93), most=(0.3, 0.02), **REST),
    # It has the thresholds of int8, and keeps what the precisions keep that it mixes.
    "best": _defaults("mixed", least=(0.99, 0.97), most=(0.15, 0.01)),
}


def as_executed(asked: Thresholds, executed: Collection[str]) -> Thresholds:
    """Return what an engine in float32 is held to that multiplies in TF32: it has the 11 bits of fp16 and leaves as
    much, 2e-4 to 5e-3 in four networks on an H200. What params.yaml sets stays."""
    if "tf32" not in executed:
        return asked
    exact, coarse = (DEFAULTS[name]["thresholds"] for name in ("fp32", "fp16"))
    return asked.model_copy(
        update={name: coarse[name] for name, value in exact.items() if getattr(asked, name) == value}
    )


OLD_NAMES = {"top1_agreement": "agreement", "accuracy_drop": "metric_drop"}  # of thresholds, until 0.2


def with_defaults(precision: str, given: Any) -> Any:
    """Return what params.yaml says of a precision, and the defaults of this precision of all that it leaves out."""
    return _laid_over(DEFAULTS.get(precision, {}), {} if given is None else given)


def _laid_over(default: Any, given: Any) -> Any:
    if not isinstance(default, Mapping) or not isinstance(given, Mapping):
        return given
    named = {OLD_NAMES[name] if OLD_NAMES.get(name, name) not in given else name: given[name] for name in given}
    return {**default, **{name: _laid_over(default.get(name), value) for name, value in named.items()}}


Method = Literal["auto", "max", "typical", "percentile", "entropy", "mse"]
AUTO = "auto"  # for each tensor the one of the others that costs the outputs least
METHODS: tuple[str, ...] = tuple(method for method in get_args(Method) if method != AUTO)


class CalibrationParams(Section):
    method: Method = "auto"
    """how the range of each tensor is chosen: max, typical (the max of nine in ten samples), percentile, entropy (least
    KL divergence), mse (least squared error), or auto: for each tensor the one of these that costs the outputs least"""
    percentile: float = Field(default=99.99, gt=50, le=100)
    """for percentile: the share of activations, in percent, that is not clipped"""
    bins: int = Field(default=2048, ge=2048, le=65536)
    """histogram bins that a threshold is chosen from; with only 128, entropy degenerates to max"""
    batch: int = Field(default=8, ge=1)
    """images per step, or fewer where their activations take more than 1 GiB"""
    file: str | None = None
    """a TensorRT calibration cache data/calibration/FILE to use instead of measuring"""


class SearchParams(Section):
    """The time to look for the layers that a precision must leave in floating point."""

    seconds: float = Field(default=600.0, gt=0)
    """to measure layers in; the next run goes on from there"""


class MixParams(Section):
    """Say which precision is mixed with int8, and how candidates are raced."""

    floating: Literal["fp32", "fp16", "bf16"] = "fp32"
    """int8 is mixed with this, the fastest that your machine executes; on a CPU fp32 takes part, too"""
    seconds: float = Field(default=1.5, gt=0)
    """to race each candidate for"""
    traces: str | None = None
    """a folder data/traces/NAME with reports/trace of a target, to choose by layer times there; null: of this machine,
    and only what is faster in a race is taken"""
