"""Models of the package transformers, from a folder with config.json and model.safetensors.

What a later stage needs to make the same model again, without the folder, is its configuration: it takes the place of
`model.arguments` in the record of the weights."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from enginewright.core.errors import UNREADABLE, EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.installing import how_to_install
from enginewright.core.params.model import ModelParams
from enginewright.core.params.samples import MEANINGS, TextPreprocessing
from enginewright.core.text import first_few, first_line
from enginewright.core.user_files import user_folder
from enginewright.data.sample_set import PreparedTexts

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
IMAGES, TEXTS = "preprocessor_config.json", "tokenizer_config.json"
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic")  # by Pillow's numbers
LARGE = 384  # ConvNeXt scales images of this size without a crop
# Models whose first positions, as many as the number of the token that pads, and that one, are never taken by a text.
AFTER_PADDING = (
    "camembert", "data2vec-text", "longformer", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta",
    "xlm-roberta-xl",
)  # fmt: skip


def read_json(file: Path, kind: type) -> Any:
    try:
        found = json.loads(file.read_text("utf-8"))
    except UNREADABLE as error:
        raise EnginewrightError(f"model.source: {file} is not JSON: {error}") from None
    if not isinstance(found, kind):
        raise EnginewrightError(f"model.source: {file} holds no {'object' if kind is dict else 'list'} of JSON")
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
    size, crop = (_size_in(config.get(name)) for name in ("size", "crop_size"))
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


def side_or_sides(height: int, width: int) -> Any:
    return height if height == width else [height, width]


def _size_in(given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    if {"height", "width"} <= given.keys():
        return side_or_sides(given["height"], given["width"])
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


WEIGHTS = "model.safetensors"
# By the end of an architecture's name, the outputs that its task reads. Others are lists of tensors, or states.
READ = {"ForObjectDetection": ("logits", "pred_boxes"), "ForSequenceClassification": ("logits",)}
POOLINGS = ("cls", "mean", "max", "lasttoken")


class Pooled(nn.Module):
    """A model whose states of the tokens become one vector for each text, as sentence-transformers do it."""

    def __init__(self, model: nn.Module, pooling: str | None, normalize: bool) -> None:
        super().__init__()
        self.model, self.pooling, self.normalize = model, pooling, normalize

    def forward(self, *arrays: torch.Tensor, **named: torch.Tensor) -> Any:
        found = self.model(*arrays, **named)
        if self.pooling is None:
            return found
        states = found.last_hidden_state
        mask = named["attention_mask"].unsqueeze(-1) if "attention_mask" in named else torch.ones_like(states[..., :1])
        if self.pooling == "cls":
            vector = states[:, 0]
        elif self.pooling == "lasttoken":
            last = mask.long().sum(1, keepdim=True) - 1  # texts are padded behind
            vector = states.gather(1, last.expand(-1, -1, states.shape[-1]))[:, 0]
        elif self.pooling == "max":
            vector = torch.where(mask.bool(), states, torch.finfo(states.dtype).min).amax(1)
        else:
            vector = (states * mask.to(states.dtype)).sum(1) / mask.to(states.dtype).sum(1)
        return {"sentence_embedding": nn.functional.normalize(vector, dim=-1) if self.normalize else vector}


class Reading(nn.Module):
    """A model that returns some of its outputs."""

    def __init__(self, model: nn.Module, outputs: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.outputs = model, outputs

    def forward(self, *arrays: torch.Tensor, **named: torch.Tensor) -> Any:
        found = self.model(*arrays, **named)
        return {name: found[name] for name in self.outputs}


def folder_of(params: ModelParams, models: Path) -> Path:
    folder = user_folder(params.library_name, models)
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise EnginewrightError(f"model.source: {folder} has no {name}: save the model with save_pretrained")
    return folder


def described(params: ModelParams, folder: Path) -> dict[str, Any]:
    """Return all that makes the model, as arguments: those that the user gives change its configuration."""
    config: dict[str, Any] = read_json(folder / CONFIG, dict) | params.arguments
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else None
    if not isinstance(architecture, str) or "model_type" not in config:
        raise EnginewrightError(f"model.source: {folder / CONFIG} does not say which architecture the model has")
    more = {"pooling": _pooling(folder), "normalize": _normalizes(folder)}
    return {"architecture": architecture, "config": config} | more


def require_its_tokenizer(folder: Path, texts: PreparedTexts | None) -> None:
    """Refuse another tokenizer than the one in the model's folder: each text would get the vectors of other words."""
    own = folder / TOKENIZER
    if texts and own.is_file() and sha256(own) != texts.tokenizer_sha256:
        raise EnginewrightError(
            f"samples.text.tokenizer: {texts.how.tokenizer} is not {own}, with which the model was trained: copy it"
        )


def require_room(arguments: dict[str, Any], texts: PreparedTexts | None) -> None:
    """Refuse texts with more tokens than the model has positions for, which fails deep within its code."""
    most = positions(arguments["config"])
    if texts and most is not None and texts.how.longest > most:
        raise EnginewrightError(
            f"samples.text.longest: texts may have {texts.how.longest} tokens, and the model has {most} positions for "
            "them: set it to so many at most, and the max of build.profile.axes with it"
        )


def make_from_transformers(arguments: dict[str, Any]) -> nn.Module:
    kind, config = _class_and_config(arguments)
    return _finished(kind(config), arguments)


def load_from_transformers(arguments: dict[str, Any], folder: Path) -> nn.Module:
    """Return the model with the weights of its folder. Weights that the folder lacks would be random."""
    kind, config = _class_and_config(arguments)
    try:
        model, about = kind.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True
        )
    except Exception as error:  # the library raises errors of many types
        raise EnginewrightError(f"model.source: {folder} cannot be loaded: {first_line(error)}") from None
    unused = "pooler." if arguments["pooling"] else "\0"  # a vector is made of states, without that layer
    if missing := sorted(name for name in about["missing_keys"] if not name.startswith(unused)):
        raise EnginewrightError(
            f"model.source: {folder / WEIGHTS} lacks {first_few(missing, most=3)}, which would be random"
        )
    return _finished(model, arguments)


def _finished(model: nn.Module, arguments: dict[str, Any]) -> nn.Module:
    read = next((outputs for end, outputs in READ.items() if arguments["architecture"].endswith(end)), ())
    if read:  # by the whole model: a detector's encoder alone finds nothing, and BART's decoder reads the text, too
        return Reading(model.float(), read).eval()
    if getattr(model.config, "is_encoder_decoder", False):
        model = model.get_encoder()  # type: ignore[operator]
    return Pooled(model.float(), arguments["pooling"], arguments["normalize"]).eval()


def _class_and_config(arguments: dict[str, Any]) -> tuple[Any, Any]:
    transformers, architecture, given = _import_transformers(), arguments["architecture"], arguments["config"]
    known = {name: value for name, value in given.items() if name not in ("model_type", "transformers_version")}
    # A cache of keys and values would be an output that is no tensor, and experts in another form do not export.
    settings = {"use_cache": False, "experts_implementation": "batched_mm"}
    try:
        config = transformers.AutoConfig.for_model(given["model_type"], **known | settings)
    except Exception as error:  # unknown model types, and values that a configuration refuses
        raise EnginewrightError(f"model.source: its {CONFIG} is not understood: {first_line(error)}") from None
    kind = getattr(transformers, architecture, None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):  # the name is from a file
        version = transformers.__version__
        raise EnginewrightError(f"model.source: transformers {version} has no architecture {architecture}")
    return kind, config


def _pooling(folder: Path) -> str | None:
    """Return how a folder of sentence-transformers makes a vector, or None if it is no such folder."""
    file = folder / "1_Pooling" / CONFIG
    if not file.is_file():
        return None
    settings = read_json(file, dict)
    named = settings.get("pooling_mode", [])  # one or several, since sentence-transformers 6; before, a flag for each
    flags = [name.removeprefix("pooling_mode_") for name, value in settings.items() if value is True]
    names = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max"}
    modes = named if isinstance(named, list) else [named]
    found = [str(mode) for mode in modes or (names.get(flag, flag) for flag in flags)]
    found = [mode for mode in found if mode != "include_prompt"]
    if len(found) != 1 or found[0] not in POOLINGS:
        raise EnginewrightError(
            f"model.source: {file} pools by {', '.join(found) or 'nothing'}; one of {', '.join(POOLINGS)} is supported"
        )
    return str(found[0])


def _normalizes(folder: Path) -> bool:
    """Tell whether sentence-transformers brings vectors to length 1. Other modules behind the pooling are refused."""
    file = folder / "modules.json"
    modules = read_json(file, list) if file.is_file() else []
    types = [str(module.get("type") if isinstance(module, dict) else module).rpartition(".")[2] for module in modules]
    if odd := [name for name in types if name not in ("Transformer", "Pooling", "Normalize")]:
        raise EnginewrightError(f"model.source: {file} has a module {odd[0]}: make the model in a factory of your own")
    return "Normalize" in types


def _import_transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise EnginewrightError(
            f"model.source needs transformers, which is not installed ({how_to_install('transformers')})"
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers
