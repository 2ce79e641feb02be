"""The one way from an image to the tensor that a model sees.

It has two halves. Decoding and resizing happen once and leave bytes, a quarter of the size of floats; the arithmetic
happens whenever a batch is read. Both are described by `Preprocessing`, which travels with the samples and the engine.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from enginery.core.errors import EngineryError
from enginery.core.params import Preprocessing

Pixels = NDArray[np.uint8]
SIXTEEN_BIT_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def decode(path: Path) -> Image.Image:
    """The picture as a person sees it: upright, in RGB, 16-bit grey scaled to 8."""
    try:
        with Image.open(path) as opened:
            upright = ImageOps.exif_transpose(opened)
            if upright.mode in SIXTEEN_BIT_MODES:
                upright = Image.fromarray((np.asarray(upright).astype(np.int64) // 257).clip(0, 255).astype(np.uint8))
            return upright.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:  # Pillow's for broken files
        raise EngineryError(f"{path} is not an image that can be decoded: {error}") from None


def resize(image: Image.Image, how: Preprocessing) -> Pixels:
    """Scale the shorter side, cut the middle, to the pixel as torchvision does: bytes of shape (3, crop, crop)."""
    width, height = (how.resize * side // min(image.size) for side in image.size)
    scaled = image.resize((width, height), Image.Resampling[how.interpolation.upper()])
    left, top = round((width - how.crop) / 2), round((height - how.crop) / 2)
    cut = scaled.crop((left, top, left + how.crop, top + how.crop))
    return np.ascontiguousarray(np.asarray(cut).transpose(2, 0, 1))


def normalize(pixels: Pixels, how: Preprocessing) -> NDArray[np.float32]:
    """Bytes of shape (N, 3, H, W) to what the model takes."""
    mean = np.asarray(how.mean, np.float32).reshape(1, 3, 1, 1)
    std = np.asarray(how.std, np.float32).reshape(1, 3, 1, 1)
    return (pixels.astype(np.float32) / np.float32(255) - mean) / std
