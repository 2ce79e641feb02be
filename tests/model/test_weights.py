"""The sources of weights, without a download: a fixture makes the published weights, on PyTorch's device `meta`."""

import pytest
import torch
import torchvision
from support.errors import error_of
from support.unpickling import TouchesFile
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import ModelParams
from enginewright.model.factory import make_model
from enginewright.model.weights import _classes_of, _pretrained

ACCEPTED = {
    "inception_v3": {"transform_input": True},
    "googlenet": {"transform_input": True, "aux_logits": True},  # without aux_logits, it drops tensors of the file
    "resnet18": {},
}


@pytest.fixture
def published(monkeypatch):
    """Stand in for torchvision's downloads."""

    def state_of(weights, **_):
        name = type(weights).__name__.removesuffix("_Weights").lower()
        return torchvision.models.get_model(name, weights=None).state_dict()

    monkeypatch.setattr(torchvision.models.WeightsEnum, "get_state_dict", state_of)
    with torch.device("meta"):
        yield


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:auxiliary heads:UserWarning")
@pytest.mark.parametrize("name", ACCEPTED)
def test_arguments_that_torchvision_sets_with_published_weights_must_be_given(published, name):
    """Without them, Inception computes something else from the same weights, and no later check could notice."""
    if wanted := ACCEPTED[name]:
        with pytest.raises(EnginewrightError, match=r"published weights; say so, with \{.*transform_input: true"):
            _pretrained(ModelParams(source=name, arguments={}), None)
    model = _pretrained(ModelParams(source=name, arguments=wanted), None)
    assert {argument: getattr(model, argument) for argument in wanted} == wanted


def test_arguments_that_published_weights_forbid_are_refused(published):
    with pytest.raises(
        EnginewrightError, match=r"model.arguments: torchvision's resnet18 refuses them with its published"
    ):
        _pretrained(ModelParams(source="resnet18", arguments={"num_classes": 5}), None)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """Return the path where PyTorch keeps ResNet-18's published weights after a download."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    url = torchvision.models.get_model_weights("resnet18").DEFAULT.url
    file = tmp_path / "checkpoints" / url.rpartition("/")[2]
    file.parent.mkdir()
    return file


def pretrained():
    return _pretrained(ModelParams(source="resnet18", arguments={}), None)


def test_a_cached_file_that_is_not_the_published_one_is_named_and_not_read(cached, tmp_path):
    trace = tmp_path / "trace"
    torch.save({"weight": TouchesFile(trace)}, cached)
    for content in (cached.read_bytes(), b"PK\3\4cut off", b""):
        cached.write_bytes(content)
        assert error_of(pretrained) == (
            f"weights.source: {cached} is not what torchvision published: delete it, and it is downloaded again"
        )
    assert not trace.exists()


def test_a_file_with_the_right_hash_runs_no_code_either(cached, tmp_path, monkeypatch):
    trace = tmp_path / "trace"
    torch.save({"weight": TouchesFile(trace)}, cached)
    monkeypatch.setattr("enginewright.model.weights.sha256", lambda _: cached.stem.rpartition("-")[2])
    with pytest.raises(EnginewrightError, match=r"did not bring what torchvision published: Weights only load failed"):
        pretrained()
    assert not trace.exists()
    state = make_model(ModelParams(source="resnet18", arguments={}), None).state_dict()
    torch.save(state, cached)
    assert torch.equal(pretrained().fc.weight, state["fc.weight"])


def test_classes_are_those_of_the_last_tensor_that_is_not_a_counter():
    state = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7)).state_dict()
    assert _classes_of(state) == 7
    assert _classes_of({}) is None
