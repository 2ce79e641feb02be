"""What the files of a folder of transformers say of images and texts."""

import json

import pytest

from enginewright.model.from_transformers import preprocessing_of, texts_of

SHARE = {"rescale_factor": 0.00392156862745098, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
VALUES = {"color": "rgb", "divide_by": 255, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}


def sizes(resize, mode, crop):
    return {"resize": resize, "resize_mode": mode, "crop": crop}


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"size": {"height": 224, "width": 224}, "resample": 2} | SHARE,
         {**sizes(224, "stretch", 224), **VALUES, "interpolation": "bilinear"}),  # ViT
        ({"size": 224, "resample": 3, "do_normalize": True} | SHARE,
         {**sizes(224, "stretch", 224), **VALUES, "interpolation": "bicubic"}),  # ViT, as it was written at first
        ({"size": {"shortest_edge": 224}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}} | SHARE,
         {**sizes(224, "shorter_side", 224), **VALUES}),  # CLIP
        ({"size": 256, "do_center_crop": True, "crop_size": 224} | SHARE,
         {**sizes(256, "shorter_side", 224), **VALUES}),
        ({"size": {"height": 256, "width": 256}, "do_center_crop": True, "crop_size": {"height": 224, "width": 224}}
         | SHARE, {**sizes(256, "stretch", 224), **VALUES}),  # BEiT
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875} | SHARE, {**sizes(256, "shorter_side", 224), **VALUES}),
        ({"size": {"shortest_edge": 384}, "crop_pct": 0.875} | SHARE, {**sizes(384, "stretch", 384), **VALUES}),
        ({"size": {"shortest_edge": 800, "longest_edge": 1333}} | SHARE, VALUES),  # DETR: any size between
        ({"size": {"height": 480, "width": 640}, "do_rescale": False, "do_normalize": False} | SHARE,
         {**sizes([480, 640], "stretch", [480, 640]), **VALUES, "divide_by": 1, "mean": [0] * 3, "std": [1] * 3}),
        ({"size": {"shortest_edge": 288}, "do_center_crop": True, "crop_size": 256, "do_flip_channel_order": True,
          "do_normalize": False},
         {**sizes(288, "shorter_side", 256), "color": "bgr", "divide_by": 255, "mean": [0] * 3, "std": [1] * 3}),
        ({"sampling_rate": 16000, "feature_size": 1}, None),  # of sound
        (None, None),
    ],
)  # fmt: skip
def test_images_are_prepared_as_the_folder_says(tmp_path, config, wanted):
    if config is not None:
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(config))
    assert preprocessing_of(tmp_path) == wanted


@pytest.mark.parametrize(
    ("config", "tokenizer", "wanted"),
    [
        ({}, {}, {"longest": 128}),
        ({"max_position_embeddings": 64}, {"model_max_length": 10**30}, {"longest": 64}),
        ({"max_position_embeddings": 514, "model_type": "roberta", "pad_token_id": 1}, {"model_max_length": 100},
         {"longest": 100}),
        ({}, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]},
         {"longest": 128, "inputs": ["input_ids", "token_type_ids", "attention_mask"]}),
    ],
)  # fmt: skip
def test_texts_are_as_long_as_the_model_and_its_tokenizer_allow(tmp_path, config, tokenizer, wanted):
    assert texts_of(tmp_path) is None
    for name, content in {"config.json": config, "tokenizer_config.json": tokenizer, "tokenizer.json": {}}.items():
        (tmp_path / name).write_text(json.dumps(content))
    assert texts_of(tmp_path) == wanted
