"""Turn an image into the tensor that a model takes, in the same way everywhere: `Preprocessing` describes it.

Images become bytes once, which take a quarter of the space of floats, and floats whenever a batch is read. A bundle
holds a copy of this file, where it needs NumPy and Pillow alone."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

if TYPE_CHECKING:
    from enginewright.core.params.samples import Preprocessing
if __package__:
    from enginewright.core.errors import EnginewrightError
else:  # in a bundle
    EnginewrightError = ValueError  # type: ignore[assignment, misc]

Pixels = NDArray[np.uint8]


SIXTEEN_BIT_MODES = ("I;16", "I;16B", "I;16L", "I;16N")
THIRTY_TWO_BIT_MODES = ("I", "F")
PHOTOMETRIC, WHITE_IS_ZERO = 262, 0  # a TIFF tag, and the value of an inverted image
MOST_PIXELS = 1 << 27  # 134 million, in a scaled image
warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # Pillow warns from 89 million on, refuses from 179


def prepare(path: Path, how: Preprocessing, layout: str | None = None) -> NDArray[Any]:
    """Read an image file as the engine takes it, without the batch axis, in the same bits as validation reads it."""
    return as_fed(in_form(decode(path), how, path), how, layout)


def in_form(image: Image.Image, how: Preprocessing, path: Path) -> Pixels:
    """Return the pixels of an image, and name its file if that is not possible."""
    try:
        return pixels_of(image, how)
    except EnginewrightError as error:
        raise EnginewrightError(f"{path}: {error}") from None


def decode(path: Path) -> Image.Image:
    """Read an image as a person sees it: upright, in RGB, on white where transparent, and only its first frame."""
    try:
        # Pillow would map a rotated TIFF that it opens by its name, and scramble it.
        with path.open("rb") as file, Image.open(file) as opened:
            return _in_rgb(_in_eight_bits(opened))
    except FileNotFoundError:
        raise EnginewrightError(f"{path} does not exist") from None
    except UnidentifiedImageError:  # its message names a file object, which helps nobody
        raise EnginewrightError(f"{path} is not an image that can be decoded: no format that Pillow knows") from None
    except Exception as error:  # each of Pillow's formats raises errors of its own for broken files
        raise EnginewrightError(f"{path} is not an image that can be decoded: {error}") from None


def pixels_of(image: Image.Image, how: Preprocessing) -> Pixels:
    """Scale and crop an image exactly as torchvision does. The bytes have the shape `how.shape`."""
    scaled = _scaled(image.convert("L" if how.color == "grey" else "RGB"), how)
    height, width = how.crop
    left, top = _cropped_away(scaled.size, how)
    pixels = np.asarray(scaled.crop((left, top, left + width, top + height))).reshape(height, width, how.channels)
    if how.color == "bgr":
        pixels = pixels[..., ::-1]
    return np.ascontiguousarray(pixels if how.layout == "nhwc" else pixels.transpose(2, 0, 1))


def place(size: tuple[int, int], how: Preprocessing) -> tuple[tuple[float, float], tuple[int, int]]:
    """Return how an image of this width and height is scaled, and then moved, both to the right and down: where a box
    in it lies in what the model takes."""
    inner, whole = _inner_size(size, how), _whole_size(size, how)
    left, top = _cropped_away(whole, how)
    moved = (whole[0] - inner[0]) // 2 - left, (whole[1] - inner[1]) // 2 - top
    return (inner[0] / size[0], inner[1] / size[1]), moved


def as_fed(pixels: Pixels, how: Preprocessing, layout: str | None) -> NDArray[Any]:
    """Turn bytes of the shape `how.shape`, or a batch of them, into what an engine takes: floats, or the bytes in its
    layout."""
    return normalize(pixels, how) if layout is None else in_layout(pixels, how.layout, layout)


def in_layout(pixels: Pixels, given: str, other: str) -> Pixels:
    """Move the channels from where one layout has them, nchw or nhwc, to where the other does."""
    channels = {"nchw": -3, "nhwc": -1}
    return np.ascontiguousarray(np.moveaxis(pixels, channels[given], channels[other]))


def normalize(pixels: Pixels, how: Preprocessing) -> NDArray[np.float32]:
    """Turn bytes of the shape `how.shape`, or a batch of them, into what the model takes."""
    along_channels = (how.channels,) if how.layout == "nhwc" else (how.channels, 1, 1)
    mean = np.asarray(how.mean, np.float32).reshape(along_channels)
    std = np.asarray(how.std, np.float32).reshape(along_channels)
    normalized: NDArray[np.float32] = (pixels.astype(np.float32) / np.float32(how.divide_by) - mean) / std
    return normalized


def _in_eight_bits(opened: Image.Image) -> Image.Image:
    """Return the image in 8 bits, rotated as its EXIF says. Keep the upper 8 bits of 16, as Pillow itself does for
    colours of 16 bits."""
    opened.load()  # raises for an image that is not whole
    with contextlib.suppress(Exception):  # malformed EXIF, in an image that may be whole
        ImageOps.exif_transpose(opened, in_place=True)  # rotates before it rewrites the EXIF, which may fail
    scaled = opened.mode == "I" and opened.format == "PPM"  # Pillow scales its maximum to 65535
    if opened.mode in THIRTY_TWO_BIT_MODES and not scaled:
        raise ValueError("its values have 32 bits, and nothing says which are black and white; save it with 8 or 16")
    if opened.mode not in SIXTEEN_BIT_MODES and not scaled:
        return opened
    values = np.asarray(opened)
    upper = (values >> 8).astype(np.uint8)
    if isinstance(transparent := opened.info.get("transparency"), int):
        upper[values == transparent] = 255
    inverted = opened.format == "TIFF" and getattr(opened, "tag_v2", {}).get(PHOTOMETRIC) == WHITE_IS_ZERO
    return Image.fromarray(255 - upper if inverted else upper)  # Pillow inverts only images of 8 bits


def _in_rgb(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def _scaled(image: Image.Image, how: Preprocessing) -> Image.Image:
    inner, whole = _inner_size(image.size, how), _whole_size(image.size, how)
    if how.resize_mode == "shorter_side" and inner[0] * inner[1] > MOST_PIXELS:
        raise EnginewrightError(
            f"{image.width} by {image.height} pixels are too long a strip to scale the shorter side to {how.resize[0]};"
            " take it out, or set samples.preprocessing.resize_mode to pad or stretch"
        )
    scaled = image.resize(inner, Image.Resampling[how.interpolation.upper()])
    if how.resize_mode != "pad":
        return scaled
    padded = Image.new(image.mode, whole, (how.fill,) * len(image.getbands()))
    padded.paste(scaled, ((whole[0] - inner[0]) // 2, (whole[1] - inner[1]) // 2))
    return padded


def _inner_size(size: tuple[int, int], how: Preprocessing) -> tuple[int, int]:
    """Return the width and height to which an image of this size is scaled."""
    height, width = how.resize
    if how.resize_mode == "stretch":
        return width, height
    if how.resize_mode == "pad":
        share = min(width / size[0], height / size[1])
        return max(1, round(size[0] * share)), max(1, round(size[1] * share))
    shorter = min(size)
    return size[0] * height // shorter, size[1] * height // shorter


def _whole_size(size: tuple[int, int], how: Preprocessing) -> tuple[int, int]:
    """Return the same with what pad adds."""
    return (how.resize[1], how.resize[0]) if how.resize_mode == "pad" else _inner_size(size, how)


def _cropped_away(whole: tuple[int, int], how: Preprocessing) -> tuple[int, int]:
    """Return how many pixels the crop takes from the left and the top."""
    height, width = how.crop
    return round((whole[0] - width) / 2), round((whole[1] - height) / 2)
