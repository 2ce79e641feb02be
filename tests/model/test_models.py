import pickle
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from support.paths import ROOT

from enginery.core.errors import EngineryError
from enginery.core.params.all import Params
from enginery.core.params.model import ModelParams
from enginery.data.sample_set import SampleSet
from enginery.model.call import call_model, name_outputs
from enginery.model.checkpoint import load_model, read_checkpoint
from enginery.model.factory import make_model
from enginery.model.records import Weights
from enginery.model.weights import obtain

MODEL, CLASSES = ModelParams(source="squeezenet1_1", arguments={}), 3


@pytest.fixture
def given(samples):
    """The model with the weights of a checkpoint, as the stage gets it."""

    def load(path, model=MODEL, classes=CLASSES):
        manifest = samples.manifest.model_copy(update={"class_names": tuple(map(str, range(classes)))})
        ours = Params.read(ROOT / "params.yaml").weights
        params = ours.model_copy(update={"source": str(path)})
        return obtain(model, params, SampleSet(samples.folder, manifest), path.parent)[0]

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
    assert "it may be truncated" in message or "is not a PyTorch checkpoint" in message or "is empty" in message


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
        assert "holds more than tensors: loading it would run getattr, so it is refused" in refusal_of(path)
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
    ours = Params.read(ROOT / "params.yaml").weights
    params = ours.model_copy(update={"source": str(tmp_path / "none.pt")})
    with pytest.raises(EngineryError, match=r"weights\.source: .*none\.pt does not exist"):
        obtain(MODEL, params, samples, tmp_path)


# The user's own code.

USERS_NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width, classes=2):
        super().__init__()
        self.layer = nn.Linear(width, classes)

def build(width=4, **others):
    if width < 1:
        raise ValueError(f"no width of {width}")
    return Net(width, **others)

def sizes(**given):
    return given

constant = 3
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """Writes the user's module, and makes what its name stands for."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name="build", code=USERS_NET, **arguments):
        (tmp_path / "users_net.py").write_text(code)
        return make_model(ModelParams(source=f"users_net:{name}", arguments=arguments), None)

    yield make
    sys.modules.pop("users_net", None)


@pytest.mark.parametrize("name", ["build", "Net"])
def test_a_factory_or_a_class_makes_the_model_with_its_arguments(users, name):
    model = users(name, width=6, classes=3)
    assert model.layer.weight.shape == (3, 6)
    assert not model.training


def test_torchvision_is_given_the_arguments_too():
    assert make_model(ModelParams(source="resnet18", arguments={"num_classes": 7}), 3).fc.out_features == 7
    with pytest.raises(EngineryError, match=r"model\.arguments: torchvision's resnet18 refuses them: .*'widht'"):
        make_model(ModelParams(source="resnet18", arguments={"widht": 7}), 3)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize(
    ("name", "arguments", "why"),
    [
        ("vit_b_16", {"image_size": 225}, "Input shape indivisible by patch size!"),
        ("resnet18", {"num_classes": -1}, "Trying to create tensor with negative dimension -1"),
        ("maxvit_t", {"input_size": [250, 250]}, "is not divisible by partition size 7"),
    ],
)
def test_sizes_that_torchvision_cannot_make_are_one_line(name, arguments, why):
    told = sentence_of(make_model, ModelParams(source=name, arguments=arguments), None)
    assert told.startswith(f"model.arguments: torchvision's {name} refuses them: ")
    assert why in told
    assert "\n" not in told


@pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants")
@pytest.mark.parametrize(
    "odd", [lambda value: value.to_sparse(), lambda value: value.to("meta")], ids=["sparse", "meta"]
)
def test_tensors_that_hold_their_values_elsewhere_are_refused(state, checkpoint, refusal_of, odd):
    changed = dict(state) | {"classifier.1.bias": odd(state["classifier.1.bias"])}
    told = refusal_of(checkpoint(changed))
    assert told.endswith("holds tensors that are sparse, or without values, in classifier.1.bias: save them dense")


@pytest.mark.parametrize("dtype", ["int8", "complex64"])
def test_numbers_of_another_kind_are_refused(state, checkpoint, refusal_of, dtype):
    """PyTorch would copy them, without their scales and without their imaginary halves."""
    changed = dict(state) | {"classifier.1.bias": state["classifier.1.bias"].to(getattr(torch, dtype))}
    told = refusal_of(checkpoint(changed))
    assert told.endswith(f"does not fit model.source: classifier.1.bias is {dtype} and should be float32")


def test_fewer_bits_are_numbers_of_the_same_kind(state, checkpoint, given):
    halves = {name: value.half() for name, value in state.items()}
    assert given(checkpoint(halves)).state_dict()["classifier.1.bias"].dtype == torch.float32


def sentence_of(call, *arguments, **named):
    with pytest.raises(EngineryError) as caught:
        call(*arguments, **named)
    return str(caught.value)


def test_a_module_that_cannot_be_imported_says_why(users, tmp_path):
    missing = ModelParams(source="users_nothing:build", arguments={})
    assert sentence_of(make_model, missing, None).startswith(
        "model.source: users_nothing cannot be imported: ModuleNotFoundError: No module named 'users_nothing'"
    )
    told = sentence_of(users, code="import torch\n\nimport users_helpers\n")
    assert "users_net cannot be imported: ModuleNotFoundError: No module named 'users_helpers'" in told
    assert f"{tmp_path / 'users_net.py'}, line 3, in <module>: import users_helpers" in told
    told = sentence_of(users, code="def build(:\n")
    assert "users_net cannot be imported: SyntaxError: " in told
    assert f"({tmp_path / 'users_net.py'}, line 1)" in told


@pytest.mark.parametrize(("name", "hint"), [("biuld", "; did you mean 'build'?"), ("zzz", ""), ("constant", "")])
def test_a_misspelt_factory_suggests_the_nearest(users, name, hint):
    told = sentence_of(users, name)
    assert told.startswith(f"model.source: users_net has no function or class '{name}'")
    assert told.endswith(hint or f"'{name}'") or name == "constant"


def test_a_factory_that_fails_is_told_with_its_line_and_not_with_ours(users, tmp_path):
    line = USERS_NET.splitlines().index('        raise ValueError(f"no width of {width}")') + 1
    assert sentence_of(users, width=0) == (
        "model.source: users_net:build fails: ValueError: no width of 0\n"
        f'  {tmp_path / "users_net.py"}, line {line}, in build: raise ValueError(f"no width of {{width}}")'
    )
    assert "TypeError" in sentence_of(users, depth=3)


def test_code_that_leaves_by_itself_is_told_like_code_that_fails(users, tmp_path):
    leaving = "import sys\nfrom torch import nn\ndef build():\n    sys.exit('no licence')\n"
    assert sentence_of(users, code=leaving) == (
        "model.source: users_net:build fails: SystemExit: no licence\n"
        f"  {tmp_path / 'users_net.py'}, line 4, in build: sys.exit('no licence')"
    )
    sys.modules.pop("users_net")
    assert "users_net cannot be imported: SystemExit: 0\n" in sentence_of(users, code="raise SystemExit(0)  # leaves\n")


def test_a_model_that_cannot_be_put_into_evaluation_is_told_like_a_factory_that_fails(users):
    odd = "from torch import nn\nclass {0}(nn.Linear):\n    def eval(self):\n        {1}\n"
    code = odd.format("Net", "raise RuntimeError('train me')")
    assert "users_net:Net fails: RuntimeError: train me" in sentence_of(
        users, "Net", code, in_features=2, out_features=3
    )
    sys.modules.pop("users_net")
    silent = users("Net", odd.format("Net", "super().eval()"), in_features=2, out_features=3)  # returns nothing
    assert not silent.training


def test_a_factory_that_makes_no_model_is_refused(users):
    assert sentence_of(users, "sizes", width=3) == "model.source: users_net:sizes returns dict, not a torch.nn.Module"


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_an_archive_of_torchscript_is_refused_like_one_in_a_file(users):
    code = "import torch\ndef build():\n    return torch.jit.script(torch.nn.Linear(2, 3))\n"
    assert sentence_of(users, code=code) == (
        "model.source: users_net:build returns a TorchScript archive, which holds code: return the torch.nn.Module "
        "that it was made of"
    )


def test_a_state_that_no_file_of_weights_may_hold_is_refused_where_the_model_is_made(users):
    code = "from torch import nn\nclass Net(nn.Linear):\n    def get_extra_state(self):\n        return {0}\n"
    code += "    def set_extra_state(self, state): ...\n"
    assert sentence_of(users, "Net", code.format("{'version': 3}"), in_features=2, out_features=3) == (
        "model.source: users_net:Net returns a model whose state is more than tensors (_extra_state), which no file of "
        "weights may hold: make it in the factory instead of by get_extra_state"
    )
    sys.modules.pop("users_net")
    users("Net", "import torch\n" + code.format("torch.ones(1)"), in_features=2, out_features=3)


def test_another_number_of_classes_is_put_down_to_who_said_it(users, state, checkpoint, refusal_of):
    other = dict(state) | {"classifier.1.bias": torch.zeros(4)}
    told = refusal_of(checkpoint(other))
    assert "does not fit model.source and the classes of samples.source: classifier.1.bias is (4,)" in told
    told = refusal_of(checkpoint(other), classes=0)  # the last tensor is the last layer's bias: made for four
    assert "fit model.source and model.arguments, which say how many classes there are, such as {num_classes" in told
    users()
    factory = ModelParams(source="users_net:build", arguments={"width": 4})
    given = checkpoint({"layer.weight": torch.zeros(3, 4), "layer.bias": torch.zeros(3)})
    told = refusal_of(given, model=factory)
    assert "such as {num_classes: 10}: layer.weight is (3, 4) and should be (2, 4), layer.bias is" in told


def test_what_the_stage_left_is_loaded_with_its_arguments(users, tmp_path):
    model = users(width=5, classes=4)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    Weights(
        model="users_net:build", arguments={"width": 5, "classes": 4}, source="given", classes=None, sha256="0" * 64
    ).write(tmp_path / "weights.json")
    assert same(load_model(tmp_path).state_dict(), model.state_dict())


# What models return.

ONE, OTHER = torch.ones(2, 3), torch.zeros(2, 3, 4)
Scored = namedtuple("Scored", ["scores", "map"])


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (ONE, ["logits"]),
        ({"out": ONE, "aux": OTHER}, ["out", "aux"]),
        (Scored(ONE, OTHER), ["scores", "map"]),
        ((ONE, OTHER), ["output_0", "output_1"]),
        ([ONE, OTHER], ["output_0", "output_1"]),
        ((ONE, None, OTHER), ["output_0", "output_2"]),
        ({"out": ONE, "loss": None}, ["out"]),
        (Scored(None, OTHER), ["map"]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_outputs_have_names_whatever_shape_they_come_in(result, names):
    named = name_outputs(result)
    assert list(named) == names
    assert all(value is ONE or value is OTHER for value in named.values())


@pytest.mark.parametrize("result", [{}, (), (None, None), {"loss": None}], ids=repr)
def test_a_model_that_returns_nothing_is_refused(result):
    kind = type(result).__name__
    assert sentence_of(name_outputs, result) == f"model.source: the model returns {kind} without a tensor"


def test_what_is_no_tensor_is_refused_by_name():
    assert sentence_of(name_outputs, {"out": ONE, "loss": 0.5}) == "model.source: output loss is float, not a tensor"
    assert sentence_of(name_outputs, "done") == "model.source: the model returns str, not tensors"
    assert sentence_of(name_outputs, (ONE, (OTHER,))) == "model.source: output output_1 is tuple, not a tensor"


def test_one_input_is_given_by_position_and_several_by_name():
    def alone(pixels):
        return pixels

    def pair(second, first):
        return {"first": first, "second": second}

    assert call_model(alone, {"input": ONE})["logits"] is ONE
    assert call_model(pair, {"first": ONE, "second": OTHER}) == {"first": ONE, "second": OTHER}
