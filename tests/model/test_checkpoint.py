import pickle
import re
from pathlib import Path

import pytest
import torch
from support.errors import error_of
from support.paths import ROOT
from support.unpickling import TouchesFile
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.params.model import ModelParams
from enginewright.data.sample_set import SampleSet
from enginewright.model.checkpoint import (
    Weights,
    apply_weights,
    load_model,
    not_finite,
    read_checkpoint,
    require_finite,
    save_weights,
)
from enginewright.model.factory import make_model
from enginewright.model.weights import obtain_model

MODEL, CLASSES = ModelParams(source="squeezenet1_1", arguments={}), 3


@pytest.fixture
def given(samples):
    """Return the model with the weights of a checkpoint, as the stage obtains it."""

    def load(path, model=MODEL, classes=CLASSES):
        manifest = samples.manifest.model_copy(update={"class_names": tuple(map(str, range(classes)))})
        ours = Params.read(ROOT / "params.yaml").weights
        params = ours.model_copy(update={"source": str(path)})
        return obtain_model(model, params, SampleSet(samples.folder, manifest), path.parent, None, None)[0]

    return load


@pytest.fixture
def refusal_of(given):
    def refuse(path, **changes):
        told = error_of(given, path, **changes)
        assert "\n" not in told
        return told

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
def test_a_model_finds_the_version_of_its_code_in_a_state_dict(given, tmp_path, prefix):
    """MNASNet refuses a state dict without the versions that PyTorch keeps beside the tensors."""
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
    assert not re.search("miniz|PytorchStreamReader", message)
    assert "it may be truncated" in message or "is not a PyTorch checkpoint" in message or "is empty" in message


@pytest.mark.parametrize("content", [b"hello world", b"\x80\x04K\x05.", b"{}"])
def test_a_file_that_is_no_checkpoint_is_one_sentence(tmp_path, refusal_of, content):
    (tmp_path / "given.pt").write_bytes(content)
    assert refusal_of(tmp_path / "given.pt").startswith(str(tmp_path / "given.pt"))


def test_a_checkpoint_that_would_run_code_is_refused_and_does_not_run_it(tmp_path, checkpoint, refusal_of):
    trace = tmp_path / "trace"
    for path in (checkpoint({"weight": TouchesFile(trace)}), checkpoint(TouchesFile(trace))):
        assert "holds more than tensors: loading it would run getattr, so it is refused" in refusal_of(path)
    (tmp_path / "given.pt").write_bytes(pickle.dumps(TouchesFile(trace)))
    assert str(tmp_path / "given.pt") in refusal_of(tmp_path / "given.pt")
    assert not trace.exists()


@pytest.mark.parametrize("content", [[1, 2], 5, {"a": 1}, {0: torch.zeros(1)}, torch.zeros(2)], ids=repr)
def test_a_checkpoint_without_a_state_dict_is_refused(checkpoint, refusal_of, content):
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
def test_nan_and_infinite_weights_are_named(state, checkpoint, refusal_of, broken):
    changed = {name: value.clone() for name, value in state.items()}
    changed["classifier.1.bias"][1] = broken
    assert "has NaN or infinite values in classifier.1.bias: its training went wrong" in refusal_of(checkpoint(changed))


def test_a_checkpoint_that_does_not_exist_is_named(samples, tmp_path):
    ours = Params.read(ROOT / "params.yaml").weights
    params = ours.model_copy(update={"source": str(tmp_path / "none.pt")})
    with pytest.raises(EnginewrightError, match=r"weights\.source: .*none\.pt does not exist"):
        obtain_model(MODEL, params, samples, tmp_path, None, None)


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize(
    "odd", [lambda value: value.to_sparse(), lambda value: value.to("meta")], ids=["sparse", "meta"]
)
def test_sparse_tensors_and_tensors_without_values_are_refused(state, checkpoint, refusal_of, odd):
    changed = dict(state) | {"classifier.1.bias": odd(state["classifier.1.bias"])}
    told = refusal_of(checkpoint(changed))
    assert told.endswith("holds tensors that are sparse, or without values, in classifier.1.bias: save them dense")


@pytest.mark.parametrize("dtype", ["int8", "complex64"])
def test_numbers_of_another_kind_are_refused(state, checkpoint, refusal_of, dtype):
    """PyTorch would copy them, without their scales and without their imaginary halves."""
    changed = dict(state) | {"classifier.1.bias": state["classifier.1.bias"].to(getattr(torch, dtype))}
    told = refusal_of(checkpoint(changed))
    assert told.endswith(f"does not fit model.source: classifier.1.bias is {dtype} and should be float32")


def test_float16_weights_are_accepted(state, checkpoint, given):
    halves = {name: value.half() for name, value in state.items()}
    assert given(checkpoint(halves)).state_dict()["classifier.1.bias"].dtype == torch.float32


def test_the_error_names_the_section_that_sets_the_number_of_classes(users, state, checkpoint, refusal_of):
    other = dict(state) | {"classifier.1.bias": torch.zeros(4)}
    told = refusal_of(checkpoint(other))
    assert "does not fit model.source and the classes of samples.source: classifier.1.bias is (4,)" in told
    told = refusal_of(checkpoint(other), classes=0)  # the classes are then those of the last tensor, four
    assert "fit model.source and model.arguments, which say how many classes there are, such as {num_classes" in told
    users()
    factory = ModelParams(source="users_net:build", arguments={"width": 4})
    given = checkpoint({"layer.weight": torch.zeros(3, 4), "layer.bias": torch.zeros(3)})
    told = refusal_of(given, model=factory)
    assert "such as {num_classes: 10}: layer.weight is (3, 4) and should be (2, 4), layer.bias is" in told


def test_the_model_of_the_stage_weights_is_made_with_its_arguments(users, tmp_path):
    model = users(width=5, classes=4)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    Weights(
        model="users_net:build", arguments={"width": 5, "classes": 4}, source="given", classes=None, sha256="0" * 64
    ).write(tmp_path / "weights.json")
    assert same(load_model(tmp_path).state_dict(), model.state_dict())


def test_a_submodule_may_be_called_module():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = nn.Linear(3, 2)

    model, parallel = Named(), nn.DataParallel(Named())
    for state in (Named().state_dict(), parallel.state_dict()):
        apply_weights(model, state, Path("given.pt"))
        assert torch.equal(next(iter(model.state_dict().values())), next(iter(state.values())))


def test_a_mask_of_minus_infinity_is_accepted_and_a_weight_of_nan_is_refused():
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(3, 2)
            self.register_buffer("mask", torch.full((2, 2), -torch.inf))

    state, model = Masked().state_dict(), Masked()
    apply_weights(model, state, Path("given.pt"))
    state["bias"][0] = torch.nan
    with pytest.raises(
        EnginewrightError, match=r"given.pt has NaN or infinite values in bias: its training went wrong"
    ):
        apply_weights(model, state, Path("given.pt"))
    require_finite(model.state_dict(), Path("given.pt"), not_finite(model.state_dict()))


def test_weights_for_which_a_disk_has_no_space_are_told_so():
    with pytest.raises(OSError, match="No space left on device"):
        save_weights(nn.Linear(100, 1000), Path("/dev/full"))
