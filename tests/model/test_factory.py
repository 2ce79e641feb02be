import sys

import pytest
from support.errors import error_of

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import ModelParams
from enginewright.model.factory import make_model


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("resnet19", "did you mean 'resnet18'?"),
        ("mobilnet_v2", "did you mean 'mobilenet_v2'?"),
        ("zzzzzzzz", "see torchvision.models.list_models()."),
    ],
)
def test_a_misspelt_model_suggests_the_nearest(name, wanted):
    assert error_of(make_model, ModelParams(source=name, arguments={}), 3) == (
        f"model.source: torchvision has no model '{name}' for these tasks; {wanted} "
        "A model of your own is package.module:factory"
    )


def test_torchvision_gets_the_arguments_too():
    assert make_model(ModelParams(source="resnet18", arguments={"num_classes": 7}), 3).fc.out_features == 7
    with pytest.raises(EnginewrightError, match=r"model\.arguments: torchvision's resnet18 refuses them: .*'widht'"):
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
def test_sizes_that_torchvision_refuses_are_one_line(name, arguments, why):
    told = error_of(make_model, ModelParams(source=name, arguments=arguments), None)
    assert told.startswith(f"model.arguments: torchvision's {name} refuses them: ")
    assert why in told
    assert "\n" not in told


@pytest.mark.parametrize("name", ["build", "Net"])
def test_a_factory_or_a_class_makes_the_model_with_its_arguments(users, name):
    model = users(name, width=6, classes=3)
    assert model.layer.weight.shape == (3, 6)
    assert not model.training


def test_a_module_that_cannot_be_imported_says_why(users, tmp_path):
    missing = ModelParams(source="users_nothing:build", arguments={})
    assert error_of(make_model, missing, None).startswith(
        "model.source: users_nothing cannot be imported: ModuleNotFoundError: No module named 'users_nothing'"
    )
    told = error_of(users, code="import torch\n\nimport users_helpers\n")
    assert "users_net cannot be imported: ModuleNotFoundError: No module named 'users_helpers'" in told
    assert f"{tmp_path / 'users_net.py'}, line 3, in <module>: import users_helpers" in told
    told = error_of(users, code="def build(:\n")
    assert "users_net cannot be imported: SyntaxError: " in told
    assert f"({tmp_path / 'users_net.py'}, line 1)" in told


@pytest.mark.parametrize(("name", "hint"), [("biuld", "; did you mean 'build'?"), ("zzz", ""), ("constant", "")])
def test_a_misspelt_factory_suggests_the_nearest(users, name, hint):
    told = error_of(users, name)
    assert told.startswith(f"model.source: users_net has no function or class '{name}'")
    assert told.endswith(hint or f"'{name}'") or name == "constant"


def test_a_factory_that_fails_is_reported_with_its_own_lines_alone(users, tmp_path):
    told = error_of(users, width=0)
    code = (tmp_path / "users_net.py").read_text()
    line = code.splitlines().index('        raise ValueError(f"no width of {width}")') + 1
    assert told == (
        "model.source: users_net:build fails: ValueError: no width of 0\n"
        f'  {tmp_path / "users_net.py"}, line {line}, in build: raise ValueError(f"no width of {{width}}")'
    )
    assert "TypeError" in error_of(users, depth=3)


def test_code_that_exits_is_reported_like_code_that_fails(users, tmp_path):
    leaving = "import sys\nfrom torch import nn\ndef build():\n    sys.exit('no licence')\n"
    assert error_of(users, code=leaving) == (
        "model.source: users_net:build fails: SystemExit: no licence\n"
        f"  {tmp_path / 'users_net.py'}, line 4, in build: sys.exit('no licence')"
    )
    sys.modules.pop("users_net")
    assert "users_net cannot be imported: SystemExit: 0\n" in error_of(users, code="raise SystemExit(0)  # leaves\n")


def test_a_model_whose_eval_fails_is_reported_like_a_factory_that_fails(users):
    odd = "from torch import nn\nclass {0}(nn.Linear):\n    def eval(self):\n        {1}\n"
    code = odd.format("Net", "raise RuntimeError('train me')")
    assert "users_net:Net fails: RuntimeError: train me" in error_of(users, "Net", code, in_features=2, out_features=3)
    sys.modules.pop("users_net")
    silent = users("Net", odd.format("Net", "super().eval()"), in_features=2, out_features=3)  # returns nothing
    assert not silent.training


def test_a_factory_that_returns_no_model_is_refused(users):
    assert error_of(users, "sizes", width=3) == "model.source: users_net:sizes returns dict, not a torch.nn.Module"


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_a_torchscript_archive_is_refused(users):
    code = "import torch\ndef build():\n    return torch.jit.script(torch.nn.Linear(2, 3))\n"
    assert error_of(users, code=code) == (
        "model.source: users_net:build returns a TorchScript archive, which holds code: return the torch.nn.Module "
        "that it was made of"
    )


def test_a_state_of_more_than_tensors_is_refused(users):
    code = "from torch import nn\nclass Net(nn.Linear):\n    def get_extra_state(self):\n        return {0}\n"
    code += "    def set_extra_state(self, state): ...\n"
    assert error_of(users, "Net", code.format("{'version': 3}"), in_features=2, out_features=3) == (
        "model.source: users_net:Net returns a model whose state is more than tensors (_extra_state), which no file of "
        "weights may hold: make it in the factory instead of by get_extra_state"
    )
    sys.modules.pop("users_net")
    users("Net", "import torch\n" + code.format("torch.ones(1)"), in_features=2, out_features=3)


def test_lazy_layers_are_refused(tmp_path, monkeypatch):
    (tmp_path / "lazy_net.py").write_text("from torch import nn\ndef make():\n    return nn.LazyLinear(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EnginewrightError, match=r"returns layers that do not know their sizes yet \(bias, weight\)"):
        make_model(ModelParams(source="lazy_net:make", arguments={}), 3)
