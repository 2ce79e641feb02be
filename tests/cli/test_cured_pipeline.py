"""A fault of the compiler in a whole run: its cure is found, followed, and dropped once it is not needed."""

import io
from contextlib import redirect_stdout
from html import unescape
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.small_project import STAGES, TINY, lay_over, run_stages, small_project
from support.wrong_compiler import be_wrong

from enginewright.cli.main import build_parser
from enginewright.graph.onnx_file import load_graph
from enginewright.measure.records import Validation
from enginewright.nightly import night
from enginewright.pipeline import engine
from enginewright.precision.cure import CURE, Cure

NETWORK = """
import torch
from torch import nn


def network():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 2, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
"""
ASKED = """
runtime: onnxruntime
model: {source: "nets:network"}
weights: {source: given}
samples: {preprocessing: {resize: 20, crop: 16}}
inference: {threads: 1}
search: {int8: {cure: true}}
"""


@pytest.fixture
def commands(monkeypatch):
    """Run the commands that stages and nights start in this process, whose compiler is wrong. Return them."""
    started = []

    def run(command, **_):
        started.append([str(word) for word in command[3:]])
        with redirect_stdout(io.StringIO()) as said:
            chosen = build_parser(["cure"]).parse_args(started[-1])
            chosen.run(chosen)
        return SimpleNamespace(stdout=said.getvalue())

    for module in (engine, night):
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=run, PIPE=None))
    return started


def test_a_fault_is_cured_in_the_next_run_and_its_cure_dropped_when_it_is_not_needed(tmp_path, monkeypatch, commands):
    small_project(tmp_path, monkeypatch, "int8")
    Path("nets.py").write_text(NETWORK)
    lay_over(ASKED, TINY)
    converted, report = Path("artifacts/converted/int8"), Path("reports/validation/int8.json")
    with monkeypatch.context() as wrong:
        run_stages(monkeypatch, *STAGES, "rescue", "search", "convert")
        convolutions = [node.name for node in load_graph(converted / "model.onnx").graph.node if node.op_type == "Conv"]
        be_wrong(wrong, convolutions[1:], "no number")
        run_stages(monkeypatch, "build", "validate")
        assert Validation.read(report).engine_against_graph.relative > 0.15
        assert commands == [["cure", "artifacts/engines/int8"]]
        cure = Cure.read(Path("cures/int8.json"))
        assert cure.change.nodes == (convolutions[1],)

        run_stages(monkeypatch, "machine", "convert", "build", "validate", "benchmark", "race", "trace", "report")
        assert Cure.read(converted / CURE) == cure
        assert Validation.read(report).engine_against_graph.relative < 0.01
        assert len(commands) == 1  # what is right is not looked at again
        assert f"{cure.in_words()}." in unescape(Path("reports/report.html").read_text())
        assert night.without_cures() == ["cures/int8.json is needed still"]
    assert night.without_cures() == ["cures/int8.json is no longer needed: delete it, and run `dvc repro`"]

    Path("cures/int8.json").unlink()
    run_stages(monkeypatch, "machine", "convert", "build", "validate")
    assert not (converted / CURE).exists()
    assert len(commands) == 3
