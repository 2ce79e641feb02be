"""Models of transformers and timm, as far as these packages are installed."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.pass_checks import session_of
from support.tensors import of_each

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile, Range
from enginewright.core.params.model import ModelParams
from enginewright.core.params.samples import Preprocessing, TextPreprocessing
from enginewright.data.sample_set import PreparedTexts
from enginewright.model import factory as from_timm
from enginewright.model.export import export_model
from enginewright.model.factory import make_model
from enginewright.model.from_transformers import (
    Pooled,
    described,
    folder_of,
    load_from_transformers,
    require_its_tokenizer,
    require_room,
)

MODULES = ("Transformer", "Pooling", "Normalize")
MEAN = {"word_embedding_dimension": 32, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
MODEL = ModelParams(source="transformers:data/models/small", arguments={"num_labels": 3})


def write(folder, pooling=MEAN, modules=MODULES, config=None):
    """Write a folder of sentence-transformers without weights."""
    (folder / "1_Pooling").mkdir(parents=True, exist_ok=True)
    about = modules and [{"type": f"sentence_transformers.models.{name}"} for name in modules]
    found = {"architectures": ["BertModel"], "model_type": "bert"} if config is None else config
    for name, content in {"1_Pooling/config.json": pooling, "modules.json": about, "config.json": found}.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "model.safetensors").touch()
    return folder


@pytest.mark.parametrize(
    ("pooling", "modules"),
    [
        (MEAN, MODULES),
        (
            {"pooling_mode": "mean", "include_prompt": True},
            ("transformer.Transformer", "pooling.Pooling", "x.Normalize"),
        ),
    ],
    ids=["until sentence-transformers 5", "since 6"],
)
def test_all_that_makes_a_model_is_read_from_its_folder(tmp_path, pooling, modules):
    found = described(MODEL, write(tmp_path, pooling, modules))
    assert found["config"] == {"architectures": ["BertModel"], "model_type": "bert", "num_labels": 3}
    assert (found["architecture"], found["pooling"], found["normalize"]) == ("BertModel", "mean", True)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"modules": (*MODULES, "Dense")}, "has a module Dense: make the model in a factory of your own"),
        (
            {"pooling": {"pooling_mode_weightedmean_tokens": True}},
            "pools by weightedmean_tokens; one of cls, mean, max,",
        ),
        ({"pooling": {"pooling_mode": ["cls", "mean"], "include_prompt": True}}, "pools by cls, mean; one of"),
        ({"pooling": MEAN | {"pooling_mode_cls_token": True}}, "pools by cls, mean; one of"),
        ({"config": {"model_type": "bert"}}, "does not say which architecture"),
        ({"config": {"architectures": {"a": 1}, "model_type": "bert"}}, "does not say which architecture"),
        ({"modules": None}, "modules.json holds no list of JSON"),
        ({"config": [1]}, "config.json holds no object of JSON"),
        ({"pooling": 1.5}, "config.json holds no object of JSON"),
        ({"pooling": {"pooling_mode": 1}}, "pools by 1; one of"),
    ],
)
def test_a_folder_that_is_not_understood_is_refused(tmp_path, changed, told):
    with pytest.raises(EnginewrightError, match=told):
        described(MODEL, write(tmp_path, **changed))


@pytest.mark.parametrize(
    ("pooling", "wanted"), [("cls", [1, 8]), ("mean", [2, 6]), ("max", [3, 8]), ("lasttoken", [3, 4])]
)
def test_states_are_pooled_where_the_text_is(pooling, wanted):
    class States(torch.nn.Module):
        def forward(self, input_ids, attention_mask):
            return SimpleNamespace(last_hidden_state=input_ids)

    states = torch.tensor([[[1.0, 8], [3, 4], [90, -90]]])
    found = Pooled(States(), pooling, False)(input_ids=states, attention_mask=torch.tensor([[1, 1, 0]]))
    assert found["sentence_embedding"].tolist() == [wanted]


def test_a_folder_without_weights_another_tokenizer_and_too_long_texts_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = write(tmp_path / "data/models/small")
    assert folder_of(MODEL, Path("data/models")) == Path("data/models/small")
    (folder / "tokenizer.json").write_text("{}")
    how = TextPreprocessing(tokenizer="data/texts/other.json")
    prepared = PreparedTexts(how=how, tokenizer_sha256="0" * 64, vocabulary=9, cut=0, together=1)
    with pytest.raises(EnginewrightError, match=re.escape("data/texts/other.json is not")):
        require_its_tokenizer(folder, prepared)
    require_room({"config": {}}, prepared)
    with pytest.raises(EnginewrightError, match=r"longest: texts may have 128 tokens, and the model has 64 positions"):
        require_room({"config": {"max_position_embeddings": 64}}, prepared)
    with pytest.raises(EnginewrightError, match="the model has 127 positions"):
        require_room({"config": {"model_type": "mpnet", "pad_token_id": 1, "max_position_embeddings": 129}}, prepared)
    with pytest.raises(EnginewrightError, match=re.escape("org/name is no folder here, and models are not downloaded")):
        folder_of(ModelParams(source="transformers:org/name", arguments={}), Path("data/models"))
    (folder / "model.safetensors").unlink()
    with pytest.raises(EnginewrightError, match=re.escape("has no model.safetensors")):
        folder_of(MODEL, Path("data/models"))


@pytest.mark.parametrize(
    ("source", "package"), [("timm:resnet18", "timm"), ("transformers:data/models/small", "transformers")]
)
def test_a_package_that_is_missing_is_named(source, package, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(EnginewrightError, match=f"{package}, which is not installed .pip install -e"):
        make_model(ModelParams(source=source, arguments={"architecture": "BertModel", "config": {}}), 2)


def test_a_folder_of_sentence_transformers_gives_its_vectors(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    plain = transformers.BertModel(transformers.BertConfig(**sizes, vocab_size=50)).eval()
    plain.save_pretrained(tmp_path)
    write(tmp_path, config=json.loads((tmp_path / "config.json").read_text()))
    plain.save_pretrained(tmp_path)
    arguments = json.loads(json.dumps(described(MODEL, tmp_path)))
    loaded = load_from_transformers(arguments, tmp_path)
    again = make_model(MODEL.model_copy(update={"arguments": arguments}), None)
    again.load_state_dict(loaded.state_dict())
    feeds = {"input_ids": torch.tensor([[2, 5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0]])}
    with torch.inference_mode():
        wanted = torch.nn.functional.normalize(plain(**feeds).last_hidden_state[:, :3].mean(1), dim=-1)
        for model in (loaded, again):
            torch.testing.assert_close(model(**feeds)["sentence_embedding"], wanted)


MANY = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
MANY |= {"encoder_layers": 1, "decoder_layers": 1, "eos_token_id": 2}
KINDS = {"Bart": MANY, "XLNet": {"n_layer": 1, "n_head": 2, "d_inner": 64}, "Mixtral": {"num_local_experts": 3}}
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.mark.parametrize("kind", KINDS)
def test_a_classifier_returns_its_scores_alone_and_its_experts_export(kind, tmp_path):
    """BART's decoder has a part in them; XLNet returns lists of states; Mixtral has experts in several forms."""
    whole = getattr(pytest.importorskip("transformers"), f"{kind}ForSequenceClassification")
    sizes = KINDS[kind] | {"num_labels": 3, "vocab_size": 50, "d_model": 32}
    sizes |= {} if kind == "Bart" else SIZES | {"num_key_value_heads": 2, "pad_token_id": 0}
    plain = whole(whole.config_class(**sizes)).eval()
    plain.save_pretrained(tmp_path)
    loaded = load_from_transformers(described(MODEL, tmp_path), tmp_path)
    feeds = {"input_ids": torch.tensor([[3, 5, 6, 2], [4, 3, 3, 2]])}
    with torch.inference_mode():
        assert loaded(**feeds).keys() == {"logits"}
        torch.testing.assert_close(loaded(**feeds)["logits"], plain(**feeds).logits)
    batch = Profile(batch=Range(min=1, opt=2, max=4))
    graph = export_model(
        loaded, {name: value.numpy() for name, value in feeds.items()}, of_each({0: "batch"}), batch, 20
    )
    (got,) = session_of(graph).run(None, {"input_ids": feeds["input_ids"].numpy()})
    np.testing.assert_allclose(got, plain(**feeds).logits.detach(), atol=1e-5)


def test_a_model_of_timm_has_the_classes_of_the_images_and_its_own_preprocessing():
    pytest.importorskip("timm")
    model = make_model(ModelParams(source="timm:test_vit", arguments={}), 7)
    assert model(torch.zeros(1, 3, 160, 160)).shape == (1, 7)
    how = Preprocessing(resize=160, crop=160, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
    assert from_timm.differences(model, how)[0].startswith("interpolation bilinear, where the model had bicubic")
    with pytest.raises(EnginewrightError, match="timm has no model 'test_vitt'; did you mean"):
        make_model(ModelParams(source="timm:test_vitt", arguments={}), 7)


@pytest.mark.parametrize(
    ("config", "wanted"),
    [
        ({"input_size": (3, 224, 224), "crop_pct": 0.9, "crop_mode": "center"}, (248, "shorter_side", 224, "rgb")),
        ({"input_size": (3, 224, 320), "crop_pct": 1.0}, (320, "shorter_side", [224, 320], "rgb")),
        ({"input_size": (1, 384, 384), "crop_pct": 1.0, "crop_mode": "squash"}, (384, "stretch", 384, "grey")),
        ({"input_size": (3, 240, 240), "crop_pct": 0.96, "crop_mode": "border"}, (250, "pad", 240, "rgb")),
    ],
)
def test_images_are_prepared_as_timm_does_it(config, wanted):
    count = config["input_size"][0]
    values = {"mean": (0.5,) * count, "std": (0.25,) * count, "interpolation": "bicubic"}
    found = from_timm.preprocessing_of(config | values)
    assert tuple(found[name] for name in ("resize", "resize_mode", "crop", "color")) == wanted
    assert Preprocessing(**found).mean == values["mean"]
    assert found.get("fill") == (128 if wanted[1] == "pad" else None)


def test_it_is_told_where_params_prepare_images_otherwise_than_timm(monkeypatch):
    config = {"input_size": (3, 224, 224), "crop_pct": 0.9, "interpolation": "bicubic", "mean": (0.5,) * 3}
    data = SimpleNamespace(resolve_data_config=lambda model: config | {"std": (0.5,) * 3})
    monkeypatch.setattr(from_timm, "_import_timm", lambda: SimpleNamespace(data=data))
    how = Preprocessing(resize=248, crop=224, interpolation="bicubic", mean=(0.5,) * 3, std=(0.5001,) * 3)
    assert from_timm.differences(None, how) == []
    other = how.model_copy(update={"resize": (256, 256), "mean": (0.485, 0.456, 0.406)})
    assert from_timm.differences(None, other) == [
        "resize 256, where the model had 248",
        "mean [0.485, 0.456, 0.406], where the model had [0.5, 0.5, 0.5]",
    ]


@pytest.mark.parametrize("name", ["pipeline", "os", "__version__", "AutoConfig", "nothing"])
def test_an_architecture_that_is_no_model_is_refused(name):
    pytest.importorskip("transformers")
    arguments = {"architecture": name, "config": {"model_type": "bert"}, "pooling": None, "normalize": False}
    with pytest.raises(EnginewrightError, match=f"has no architecture {name}"):
        make_model(MODEL.model_copy(update={"arguments": arguments}), None)
