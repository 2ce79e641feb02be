"""What the files of a folder of transformers say of the model and its samples, without PyTorch."""

import json
from pathlib import Path
from typing import Any

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.params.text import MEANINGS, TextPreprocessing

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
IMAGES, TEXTS = "preprocessor_config.json", "tokenizer_config.json"
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers
LARGE = 384  # ConvNeXt scales images of this size without a crop
# Models whose first positions, as many as the number of the token that pads, and that one, are never taken by a text.
AFTER_PADDING = (
    "camembert",
    "data2vec-text",
    "longformer",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
)


def read_json(file: Path, wanted: type) -> Any:
    try:
        found = json.loads(file.read_text("utf-8"))
    except UNREADABLE as error:
        raise EnginewrightError(f"model.source: {file} is not JSON: {error}") from None
    if not isinstance(found, wanted):
        raise EnginewrightError(f"model.source: {file} holds no {'object' if wanted is dict else 'list'} of JSON")
    return found


def positions(config: dict[str, Any]) -> int | None:
    """Return how many tokens a text may have, as far as the configuration says so."""
    most = config.get("max_position_embeddings")
    if not isinstance(most, int):
        return None
    padding = config.get("pad_token_id")
    return most - (1 + (1 if padding is None else padding) if config.get("model_type") in AFTER_PADDING else 0)


def preprocessing_of(folder: Path) -> dict[str, Any] | None:
    """Return how the folder says that images are prepared, in the words of samples.preprocessing, as far as it does;
    None if it says nothing of images."""
    file = folder / IMAGES
    config = read_json(file, dict) if file.is_file() else {}
    if not {"image_mean", "do_normalize", "size", "resample"} & config.keys():
        return None
    found = _sizes(config)
    found["color"] = "bgr" if config.get("do_flip_channel_order") else "rgb"
    white = 1 / config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1
    found["divide_by"] = round(white) if abs(white - round(white)) < 1e-6 else white
    normalizes = config.get("do_normalize", True)
    for name, nothing in (("mean", 0), ("std", 1)):
        if not normalizes:
            found[name] = [nothing] * 3
        elif isinstance(given := config.get(f"image_{name}"), list):
            found[name] = given
    if (number := config.get("resample")) is not None and number in range(len(RESAMPLE)):
        found["interpolation"] = RESAMPLE[number]
    return found


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    """Return resize, resize_mode and crop. Of images whose size varies between two limits nothing is said."""
    size, crop = (_side_or_sides(config.get(name)) for name in ("size", "crop_size"))
    if not config.get("do_resize", True) or size is None:
        return {}
    by_shorter = isinstance(config.get("size"), dict) and "shortest_edge" in config["size"]
    if share := config.get("crop_pct"):
        if not isinstance(size, int) or size >= LARGE:
            return {"resize": size, "resize_mode": "stretch", "crop": size}
        return {"resize": int(size / share), "resize_mode": "shorter_side", "crop": size}
    crops = config.get("do_center_crop", False) and crop is not None
    if by_shorter and not crops:
        return {}
    is_shorter = by_shorter or (crops and isinstance(config.get("size"), int))
    return {"resize": size, "resize_mode": "shorter_side" if is_shorter else "stretch", "crop": crop if crops else size}


def _side_or_sides(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if {"height", "width"} <= given.keys():
        return given["height"] if given["height"] == given["width"] else [given["height"], given["width"]]
    return given.get("shortest_edge")


def texts_of(folder: Path) -> dict[str, Any] | None:
    """Return what the folder says of texts, in the words of samples.text; None if it has no tokenizer for them."""
    if not (folder / TOKENIZER).is_file():
        return None
    config, about = (read_json(folder / name, dict) if (folder / name).is_file() else {} for name in (CONFIG, TEXTS))
    usual = TextPreprocessing.model_fields["longest"].default
    longest = [each for each in (positions(config), about.get("model_max_length")) if isinstance(each, int)]
    inputs = [name for name in about.get("model_input_names") or () if name in MEANINGS]
    return {"longest": min([usual, *longest])} | ({"inputs": inputs} if inputs else {})
