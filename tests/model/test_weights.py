"""Where weights come from, without a download: what would be fetched is made here, on no device at all."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params.model import ModelParams
from enginery.model.checkpoint import apply_weights, not_finite, require_finite
from enginery.model.factory import make_model
from enginery.model.source_model import run_model
from enginery.model.weights import _classes_of, _pretrained

ACCEPTED = {
    "inception_v3": {"transform_input": True},
    "googlenet": {"transform_input": True, "aux_logits": True},  # without the latter, it drops what the file has
    "resnet18": {},
}


@pytest.fixture
def published(monkeypatch):
    """What torchvision would download."""

    def state_of(weights, **_):
        name = type(weights).__name__.removesuffix("_Weights").lower()
        return torchvision.models.get_model(name, weights=None).state_dict()

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", state_of)
    with torch.device("meta"):
        yield


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:auxiliary heads:UserWarning")
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_torchvision_sets_beside_published_weights_must_be_said(published, name):
    """Made without it, Inception answers all else from the same weights, and no check downstream could tell."""
    if wanted := ACCEPTED[name]:
        with pytest.raises(EngineryError, match=r"published weights; say so, with \{.*transform_input: true"):
            _pretrained(ModelParams(source=name, arguments={}), None)
    model = _pretrained(ModelParams(source=name, arguments=wanted), None)
    assert {argument: getattr(model, argument) for argument in wanted} == wanted


def test_arguments_that_published_weights_forbid_are_a_sentence(published):
    with pytest.raises(EngineryError, match=r"model.arguments: torchvision's resnet18 refuses them with its published"):
        _pretrained(ModelParams(source="resnet18", arguments={"num_classes": 5}), None)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Where PyTorch would keep ResNet-18's published weights, once they are downloaded."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    file = tmp_path / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir()
    return file


class Surprise:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def pretrained():
    return _pretrained(ModelParams(source="resnet18", arguments={}), None)


def test_a_cached_file_that_is_not_the_published_one_is_named_and_not_read(cached, tmp_path):
    trace = tmp_path / "trace"
    torch.save({"weight": Surprise(trace)}, cached)
    for content in (cached.read_bytes(), b"PK\3\4cut off", b""):
        cached.write_bytes(content)
        with pytest.raises(EngineryError) as caught:
            pretrained()
        assert str(caught.value) == (
            f"weights.source: {cached} is not what torchvision published: delete it, and it is downloaded anew"
        )
    assert not trace.exists()


def test_a_file_of_the_right_hash_runs_no_code_either(cached, tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    torch.save({"weight": Surprise(trace)}, cached)
    monkeypatch.setattr("enginery.model.weights.sha256", lambda _: cached.stem.rpartition("-")[2])
    with pytest.raises(EngineryError, match=r"did not bring what torchvision published: Weights only load failed"):
        pretrained()
    assert not trace.exists()
    state = make_model(ModelParams(source="resnet18", arguments={}), None).state_dict()
    torch.save(state, cached)
    assert torch.equal(pretrained().fc.weight, state["fc.weight"])


def test_a_submodule_may_be_called_module():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(3, 2)

    model, parallel = Named(), nn.DataParallel(Named())
    for state in (Named().state_dict(), parallel.state_dict()):
        apply_weights(model, state, Path("given.pt"))
        assert torch.equal(next(iter(model.state_dict().values())), next(iter(state.values())))


def test_a_mask_of_minus_infinity_is_by_design_and_a_weight_is_not():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("mask", torch.full((2, 2), -torch.inf))

    state, model = Masked().state_dict(), Masked()
    apply_weights(model, state, Path("given.pt"))
    state["bias"][0] = torch.nan
    with pytest.raises(EngineryError, match=r"given.pt has NaN or infinite values in bias: its training went wrong"):
        apply_weights(model, state, Path("given.pt"))
    require_finite(model.state_dict(), Path("given.pt"), not_finite(model.state_dict()))


def test_a_forward_that_writes_into_its_input_leaves_the_samples_alone():
    class Greedy(nn.Module):
        def forward(self, x):
            return x.sub_(1).flatten(1)

    feeds = {"input": np.ones((2, 3), np.float32)}
    first, second = (partial(run_model, Greedy())(feeds) for _ in range(2))
    assert np.array_equal(first["logits"], second["logits"])
    assert (feeds["input"] == 1).all()


def test_classes_are_counted_where_the_state_ends_in_a_counter():
    state = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7)).state_dict()
    assert _classes_of(state) == 7
    assert _classes_of({}) is None


def test_layers_that_do_not_know_their_sizes_are_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "lazy_net.py").write_text("from torch import nn\ndef make():\n    return nn.LazyLinear(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EngineryError, match=r"returns layers that do not know their sizes yet \(bias, weight\)"):
        make_model(ModelParams(source="lazy_net:make", arguments={}), 3)
