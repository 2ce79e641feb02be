"""`enginewright.build`: an engine from a model object, without a project."""

import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import enginewright
from enginewright.cli.python import calibration_arrays, example_arrays
from enginewright.core.installing import how_to_install

ROWS = np.arange(6.0).reshape(3, 2)


class Unit(nn.Module):
    """A model that has no answer for a sample of zeros."""

    def forward(self, points):
        return points / points.norm(dim=1, keepdim=True)


class Twofold(nn.Module):
    """A model of two inputs."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(32, 48), nn.Linear(48, 32)
        self.norm = nn.BatchNorm1d(48)

    def forward(self, left, right):
        return {"sum": self.second(torch.relu(self.norm(self.first(left)))) + right}


@pytest.fixture(scope="module")
def samples():
    return torch.randn(40, 32, generator=torch.Generator().manual_seed(1))


def test_a_model_becomes_an_engine_without_a_project(samples, tmp_path, capsys):
    model, folder, path = Twofold().train(), os.getcwd(), list(sys.path)
    batches = [(samples[at : at + 8], samples[at : at + 8], "a label") for at in range(0, 40, 8)]
    with enginewright.build(model, (samples[:4], samples[:4]), "int8", batches, folder=tmp_path / "engine") as engine:
        got = engine.run({"left": samples[:6].numpy(), "right": samples[:6].numpy()})
    assert engine.record.executed == {"int8": 2}
    assert "int8: accuracy not measured: no labels or no scores, cosine 0.99" in capsys.readouterr().out
    assert model.training
    assert (os.getcwd(), sys.path) == (folder, path)
    wanted = model.eval()(samples[:6], samples[:6])["sum"].detach().numpy()
    np.testing.assert_allclose(got["sum"], wanted, atol=0.1)
    with enginewright.open_engine(tmp_path / "engine") as again:
        np.testing.assert_array_equal(
            again.run({"left": samples[:6].numpy(), "right": samples[:6].numpy()})["sum"], got["sum"]
        )


def test_an_engine_that_loses_much_breaks_no_threshold(samples, tmp_path, capsys):
    """There are none without params.yaml."""
    with enginewright.build(nn.Linear(32, 64), samples[:4], "nvfp4", 0 * samples + 1e-3, folder=tmp_path / "engine"):
        said = capsys.readouterr().out
    assert "nvfp4: accuracy not measured" in said
    assert "THRESHOLD" not in said


def test_no_sample_is_invented(samples):
    with enginewright.build(Unit(), samples[:8], "fp32") as engine:
        got = engine.run({"points": samples[:8].numpy()})
    np.testing.assert_allclose(np.linalg.norm(*got.values(), axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"precision": "int8"}, "int8 needs calibration: some hundred samples"),
        ({"precision": "fp23"}, "precision: there is no fp23; did you mean 'fp32'?"),
        ({"model": "resnet18"}, "model is str, not a torch.nn.Module"),
        ({"folder": Path(__file__).parent}, "exists already: take another, or remove it"),
        ({"example_inputs": (0, 1, 2)}, "example_inputs has 3 inputs, and the model's forward takes 2"),
        ({"example_inputs": (3.0, 4.0)}, "hold samples along the first axis, and here is one number"),
        ({"precision": "int8", "calibration": []}, "calibration has no samples"),
        ({"precision": "int8", "calibration": {"left": np.zeros((2, 32))}}, "calibration has no right, which"),
        ({"precision": "int8", "calibration": 5}, "calibration is int: give arrays, or batches of them"),
        ({"precision": "int8", "calibration": ROWS}, "calibration has no right, which"),
        (
            {"precision": "int8", "calibration": (ROWS, ROWS)},
            r"calibration: a batch of left is float32\[samples, 2\], and example_inputs is float32\[samples, 32\]",
        ),
        ({"precision": "int8", "calibration": [(ROWS[0], ROWS[0])]}, r"a batch of left is float32\[samples\], and"),
        ({"precision": "int8", "calibration": (np.ones((2, 32), int),) * 2}, "a batch of left is int64"),
        ({"runtime": "trt"}, "enginewright.build: runtime: input should be"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_runs(changes, sentence):
    folder, ones = os.getcwd(), np.ones((2, 32))
    given = {"model": Twofold(), "example_inputs": (ones, ones), "precision": "fp32"} | changes
    with pytest.raises(enginewright.EnginewrightError, match=sentence.replace("?", r"\?")):
        enginewright.build(**given)
    assert os.getcwd() == folder


def test_a_light_installation_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("enginewright.cli.python.NEEDED", ("not_installed",))
    with pytest.raises(
        enginewright.EnginewrightError,
        match=re.escape(f"not_installed, which `{how_to_install('pipeline')}` inst"),
    ):
        enginewright.build(Twofold(), np.ones((2, 32)))


@pytest.mark.parametrize(
    ("given", "names", "first"),
    [
        (ROWS, ["left"], ROWS),
        (torch.tensor(ROWS), ["left"], ROWS),
        ([ROWS, ROWS], ["left"], [*ROWS, *ROWS]),
        ((ROWS, ROWS), ["left", "right"], ROWS),
        ([(ROWS, np.arange(3)), (ROWS, np.arange(3))], ["left"], [*ROWS, *ROWS]),
        (({"left": ROWS, "label": 1} for _ in range(2)), ["left"], [*ROWS, *ROWS]),
    ],
)
def test_samples_are_given_in_many_ways(given, names, first):
    got = calibration_arrays(given, {name: np.zeros((1, 2), np.float32) for name in names})
    assert list(got) == names
    assert got["left"].dtype == np.float32
    np.testing.assert_array_equal(got["left"], first)


def test_whole_numbers_stay_as_they_are():
    got = example_arrays(Twofold(), {"left": torch.arange(4), "right": np.array([True])})
    assert {name: array.dtype.name for name, array in got.items()} == {"left": "int64", "right": "bool"}
