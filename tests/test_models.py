import pickle
from pathlib import Path

import pytest
import torch

from enginery.core.errors import EngineryError
from enginery.core.params import ModelParams, load_params
from enginery.models import make_model, read_checkpoint
from enginery.samples import SampleSet
from enginery.weights import obtain

MODEL, CLASSES = ModelParams(source="squeezenet1_1", arguments={}), 3


@pytest.fixture
def given(samples):
    """The model with the weights of a checkpoint, as the stage gets it."""

    def load(path, model=MODEL, classes=CLASSES):
        manifest = samples.manifest.model_copy(update={"class_names": tuple(map(str, range(classes)))})
        ours = load_params(Path(__file__).parents[1] / "params.yaml").weights
        params = ours.model_copy(update={"source": str(path)})
        return obtain(model, params, SampleSet(samples.folder, manifest), path.parent)

    return load


@pytest.fixture
def refusal_of(given):
    def refuse(path, **changes):
        with pytest.raises(EngineryError) as caught:
            given(path, **changes)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refuse


@pytest.fixture(scope="module")
def state():
    torch.manual_seed(0)
    return make_model(MODEL, CLASSES).state_dict()


@pytest.fixture
def checkpoint(tmp_path):
    def save(content, **options):
        torch.save(content, tmp_path / "given.pt", **options)
        return tmp_path / "given.pt"

    return save


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 7, "optimizer": {"lr": 0.1}},
        lambda state: {"model_state_dict": state},
        lambda state: {"model": state, "epoch": 7},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
    ],
    ids=["plain", "state_dict", "model_state_dict", "model", "module.", "state_dict of module."],
)
def test_a_state_dict_is_accepted_however_training_scripts_wrap_it(state, checkpoint, given, wrap):
    model = given(checkpoint(wrap(state)))
    assert same(model.state_dict(), state)
    assert not model.training


@pytest.mark.parametrize("prefix", ["", "module."])
def test_a_model_that_asks_for_its_version_finds_it(given, tmp_path, prefix):
    """MNASNet raises where a state dict has lost what PyTorch keeps beside the tensors."""
    params = ModelParams(source="mnasnet0_5", arguments={})
    model = make_model(params, CLASSES)
    wrapped = torch.nn.DataParallel(model) if prefix else model
    torch.save(wrapped.state_dict(), tmp_path / "given.pt")
    assert same(given(tmp_path / "given.pt", model=params).state_dict(), model.state_dict())


def test_the_older_file_format_is_accepted(state, checkpoint):
    path = checkpoint(state, _use_new_zipfile_serialization=False)
    assert same(read_checkpoint(path), state)


@pytest.mark.parametrize("is_zip", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("share", [0, 0.001, 0.01, 0.3, 0.999])
def test_a_truncated_checkpoint_is_one_sentence(state, checkpoint, refusal_of, is_zip, share):
    path = checkpoint(state, _use_new_zipfile_serialization=is_zip)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    message = refusal_of(path)
    assert message.startswith(str(path))
    assert "it may be truncated" in message or "is not a PyTorch checkpoint" in message


@pytest.mark.parametrize("content", [b"hello world", b"\x80\x04K\x05.", b"{}"])
def test_a_file_of_something_else_is_one_sentence(tmp_path, refusal_of, content):
    (tmp_path / "given.pt").write_bytes(content)
    assert refusal_of(tmp_path / "given.pt").startswith(str(tmp_path / "given.pt"))


class Surprise:
    """Would leave a file behind if it were unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_checkpoint_that_would_run_code_is_refused_and_does_not_run_it(tmp_path, checkpoint, refusal_of):
    trace = tmp_path / "trace"
    for path in (checkpoint({"weight": Surprise(trace)}), checkpoint(Surprise(trace))):
        assert "holds more than tensors" in refusal_of(path)
    (tmp_path / "given.pt").write_bytes(pickle.dumps(Surprise(trace)))
    assert str(tmp_path / "given.pt") in refusal_of(tmp_path / "given.pt")
    assert not trace.exists()


@pytest.mark.parametrize("content", [[1, 2], 5, {"a": 1}, {0: torch.zeros(1)}, torch.zeros(2)], ids=repr)
def test_what_is_no_state_dict_is_refused(checkpoint, refusal_of, content):
    assert "is not a state dict: it must map parameter names to tensors" in refusal_of(checkpoint(content))


def test_missing_and_unknown_keys_are_counted_and_named(state, checkpoint, refusal_of):
    changed = dict(state)
    changed["features.zero.weight"] = changed.pop("features.0.weight")
    message = refusal_of(checkpoint(changed))
    assert "its keys differ: 1 missing (features.0.weight), 1 unknown (features.zero.weight)" in message


def test_the_checkpoint_of_another_model_names_a_few_keys_only(state, checkpoint, refusal_of):
    message = refusal_of(checkpoint(state), model=ModelParams(source="alexnet", arguments={}))
    assert " and " in message
    assert len(message) < 400 + len(str(checkpoint(state)))


def test_a_wrong_number_of_classes_is_named_by_both_shapes(state, checkpoint, refusal_of):
    message = refusal_of(checkpoint(state), classes=5)
    assert "classifier.1.weight is (3, 512, 1, 1) and should be (5, 512, 1, 1)" in message


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(state, checkpoint, refusal_of, broken):
    changed = {name: value.clone() for name, value in state.items()}
    changed["classifier.1.bias"][1] = broken
    assert "has NaN or infinite values in classifier.1.bias: its training went wrong" in refusal_of(checkpoint(changed))


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("resnet19", "did you mean 'resnet18'?"),
        ("mobilnet_v2", "did you mean 'mobilenet_v2'?"),
        ("zzzzzzzz", "see torchvision.models.list_models()."),
    ],
)
def test_a_misspelt_model_suggests_the_nearest(name, wanted):
    with pytest.raises(EngineryError) as caught:
        make_model(ModelParams(source=name, arguments={}), CLASSES)
    assert str(caught.value) == (
        f"model.source: torchvision has no classifier '{name}'; {wanted} A model of your own is package.module:factory"
    )


def test_a_checkpoint_that_does_not_exist_is_named(samples, tmp_path):
    ours = load_params(Path(__file__).parents[1] / "params.yaml").weights
    params = ours.model_copy(update={"source": str(tmp_path / "none.pt")})
    with pytest.raises(EngineryError, match=r"weights\.source: .*none\.pt does not exist"):
        obtain(MODEL, params, samples, tmp_path)
