"""A module that the user wrote."""

import sys

import pytest

from enginewright.core.params.model import ModelParams
from enginewright.model.factory import make_model

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
    """Write the user's module, and make the model of one of its functions or classes."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name="build", code=USERS_NET, **arguments):
        (tmp_path / "users_net.py").write_text(code)
        return make_model(ModelParams(source=f"users_net:{name}", arguments=arguments), None)

    yield make
    sys.modules.pop("users_net", None)
