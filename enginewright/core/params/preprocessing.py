"""The section `samples.preprocessing`: how an image becomes a tensor."""

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from enginewright.core.params.section import Section

LARGEST_SIDE = 65500  # pixels of an image


def _height_and_width(given: Any) -> Any:
    """Take one number for both sides. It is checked here, so that a mistake is reported once and not for each side."""
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= LARGEST_SIDE:
        return given, given
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ValueError(f"write one number from 1 to {LARGEST_SIDE}, or [height, width], not {given!r}")
    return given


Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
Size = Annotated[tuple[Side, Side], BeforeValidator(_height_and_width)]
PerChannel = Annotated[tuple[float, ...], Field(min_length=1)]


class Preprocessing(Section):
    """The way an image becomes a tensor. `mean` and `std` apply after `divide_by` and are in the order of `color`."""

    resize: Size
    resize_mode: Literal["shorter_side", "stretch", "pad"] = "shorter_side"
    fill: int = Field(default=0, ge=0, le=255)
    crop: Size
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    color: Literal["rgb", "bgr", "grey"] = "rgb"
    layout: Literal["nchw", "nhwc"] = "nchw"
    divide_by: float = Field(default=255.0, gt=0)
    mean: PerChannel
    std: PerChannel

    @property
    def channels(self) -> int:
        return 1 if self.color == "grey" else 3

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of one image, without the batch."""
        return (*self.crop, self.channels) if self.layout == "nhwc" else (self.channels, *self.crop)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.resize_mode == "shorter_side" and self.resize[0] != self.resize[1]:
            raise ValueError("resize: the shorter side is one number; [height, width] is for stretch and pad")
        for side, crop, resize in zip(("high", "wide"), self.crop, self.resize, strict=True):
            if crop > resize:
                raise ValueError(f"crop is {crop} {side}, which is larger than resize, {resize}")
        for name, values in {"mean": self.mean, "std": self.std}.items():
            if len(values) != self.channels:
                raise ValueError(f"{name} has {len(values)} values, and {self.color} has {self.channels} channels")
        if min(self.std) <= 0:
            raise ValueError("every std must be above 0")
        return self
