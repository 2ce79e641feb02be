from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from enginewright.core.params.section import Section

# The section `samples.preprocessing`: how an image becomes a tensor.

LARGEST_SIDE = 65500  # pixels of an image


def _height_and_width(given: Any) -> Any:
    """Take one number for both sides. It is checked here, so that a mistake is reported once and not for each side."""
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= LARGEST_SIDE:
        return given, given
    if not isinstance(given, (list, tuple)) or len(given) != 2:
        raise ValueError(f"write one number from 1 to {LARGEST_SIDE}, or [height, width], not {given!r}")
    return given


Side = Annotated[int, Field(ge=1, le=LARGEST_SIDE)]
HeightWidth = Annotated[tuple[Side, Side], BeforeValidator(_height_and_width)]
PerChannel = Annotated[tuple[float, ...], Field(min_length=1)]


class Preprocessing(Section):
    """The way an image becomes a tensor. `mean` and `std` apply after `divide_by` and are in the order of `color`."""

    resize: HeightWidth
    resize_mode: Literal["shorter_side", "stretch", "pad"] = "shorter_side"
    fill: int = Field(default=0, ge=0, le=255)
    crop: HeightWidth
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


# The section `samples.text`: how a text becomes numbers.

IDS, MASK, TYPES = "ids", "mask", "types"
MEANINGS = {  # of an input, by the names that are usual for it
    "input_ids": IDS, "ids": IDS, "tokens": IDS,
    "attention_mask": MASK, "mask": MASK, "input_mask": MASK,
    "token_type_ids": TYPES, "segment_ids": TYPES, "type_ids": TYPES,
}  # fmt: skip


class TextPreprocessing(Section):
    """The way a text becomes token ids, and a batch of texts arrays. What a tokenizer's file says of padding and of
    truncation does not count, but for the token that it pads with."""

    tokenizer: str
    longest: int = Field(default=128, ge=1, le=65536)
    multiple_of: int = Field(default=8, ge=1)
    inputs: Annotated[tuple[str, ...], Field(min_length=1)] = ("input_ids", "attention_mask")
    dtype: Literal["int64", "int32"] = "int64"
    padding: str | None = Field(default=None, min_length=1)
    spare_rows: bool = False

    @property
    def shortest(self) -> int:
        return min(self.multiple_of, self.longest)

    @property
    def varies(self) -> bool:
        return self.shortest < self.longest

    @property
    def meanings(self) -> dict[str, str]:
        """Return what each input takes."""
        return {name: MEANINGS[name] for name in self.inputs}

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for name in self.inputs:
            if name not in MEANINGS:
                raise ValueError(f"inputs: '{name}' is none of the usual names, which are {', '.join(MEANINGS)}")
        meanings = [MEANINGS[name] for name in self.inputs]
        if IDS not in meanings or len(set(meanings)) < len(meanings):
            raise ValueError(
                f"inputs: one input takes the ids, and at most one each a mask and types; got {self.inputs}"
            )
        return self


def _names_or_file(given: Any) -> Any:
    listed = isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given)
    if given is not None and not isinstance(given, str) and not listed:
        raise ValueError(f"write null, a file, or a list of names (numbers in quotes), not {given!r}")
    return given


Size = Annotated[int, Field(ge=1)]


class SamplesParams(Section, place="samples"):
    source: str
    class_names: Annotated[str | tuple[str, ...] | None, BeforeValidator(_names_or_file)] = None
    ignore: int = Field(default=255, ge=0, le=65535)
    input: str = Field(default="input", min_length=1)
    seed: int = Field(ge=0)
    validation: int = Field(ge=1)
    training: int = Field(ge=0)
    calibration: int = Field(ge=1)
    preprocessing: Preprocessing | None
    text: TextPreprocessing | None = None
    values: dict[str, Size | Annotated[tuple[Size, ...], Field(min_length=1)]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> Self:
        if self.text and self.preprocessing:
            raise ValueError("preprocessing: is for images, and samples.text for texts: set one of the two to null")
        return self
