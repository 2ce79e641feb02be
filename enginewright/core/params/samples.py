"""The section `samples`, with `samples.preprocessing` and `samples.text`."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

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
Layout = Literal["nchw", "nhwc"]
PerChannel = Annotated[tuple[float, ...], Field(min_length=1)]


class Preprocessing(Section):
    """The way an image becomes a tensor. `mean` and `std` apply after `divide_by` and are in the order of `color`."""

    resize: HeightWidth = (64, 64)
    """in pixels; for stretch and pad also [height, width]"""
    resize_mode: Literal["shorter_side", "stretch", "pad"] = "shorter_side"
    """scale this side to resize; stretch: both sides; pad: the longer one, fill the rest"""
    fill: int = Field(default=0, ge=0, le=255)
    """what pad fills with"""
    crop: HeightWidth = (64, 64)
    """the size of the middle that is then kept, in pixels, or [height, width]"""
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    """as Pillow does, smoothed where it shrinks"""
    color: Literal["rgb", "bgr", "grey"] = "rgb"
    """the order of the channels; grey is one"""
    layout: Layout = "nchw"
    """nhwc: channels last"""
    divide_by: float = Field(default=255.0, gt=0)
    """brings 0..255 to 0..1; 1 leaves it"""
    mean: PerChannel = (0.5, 0.5, 0.5)
    """per channel, in the order of color, of values after divide_by"""
    std: PerChannel = (0.5, 0.5, 0.5)
    """likewise"""

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
    """a file data/texts/FILE.json; there is no default"""
    longest: int = Field(default=128, ge=1, le=65536)
    """in tokens; what is longer is cut"""
    multiple_of: int = Field(default=8, ge=1)
    """lengths are padded to multiples of this"""
    inputs: Annotated[tuple[str, ...], Field(min_length=1)] = ("input_ids", "attention_mask")
    """the names of what the model takes"""
    dtype: Literal["int64", "int32"] = "int64"
    """of the inputs"""
    padding: str | None = Field(default=None, min_length=1)
    """the token to pad with; null: the tokenizer's"""
    spare_rows: bool = False
    """see docs/how-to/data.md"""

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
            raise ValueError(f"inputs: one takes the ids, and at most one each a mask and types; got {self.inputs}")
        return self


def _names_or_file(given: Any) -> Any:
    listed = isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given)
    if given is not None and not isinstance(given, str) and not listed:
        raise ValueError(f"write null, a file, or a list of names (numbers in quotes), not {given!r}")
    return given


Size = Annotated[int, Field(ge=1)]


class SamplesParams(Section):
    source: str = "digits"
    """scikit-learn's handwritten digits, or your own images: data/images/NAME, a folder with a folder per class or of
    images alone; NAME.csv of paths; NAME.npz of pixels, see docs/how-to/data.md"""
    class_names: Annotated[str | tuple[str, ...] | None, BeforeValidator(_names_or_file)] = None
    """in the order of the model's outputs: a list, or a file data/images/FILE.txt with a class per line; null: the
    names of folders or labels, in alphabetical order"""
    ignore: int = Field(default=255, ge=0, le=65535)
    """in masks of segmentation: the value of pixels that do not count"""
    input: str = Field(default="input", min_length=1)
    """what the model's input is called"""
    seed: int = Field(default=0, ge=0)
    """of the split"""
    validation: int = Field(default=512, ge=1)
    """how many images engines are judged on"""
    training: int = Field(default=1000, ge=0)
    """how many images weights.source: train learns from; 0 where nothing is trained"""
    calibration: int = Field(default=256, ge=1)
    """how many images quantization ranges are measured on; the three sets are disjoint"""
    preprocessing: Preprocessing | None = Preprocessing()
    """stored with every engine: inference prepares an image exactly like this"""
    text: TextPreprocessing | None = None
    """for texts, see docs/how-to/data.md: {tokenizer: data/texts/tokenizer.json, longest: 128}"""
    values: dict[str, Size | Annotated[tuple[Size, ...], Field(min_length=1)]] = Field(default={})
    """of inputs that hold sizes, and no row for each sample, such as {sizes: [16, 16]}"""

    @model_validator(mode="after")
    def _are_of_one_kind(self) -> Self:
        if self.text and self.preprocessing:
            raise ValueError("preprocessing: is for images, and samples.text for texts: set one of the two to null")
        return self
