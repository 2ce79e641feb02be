"""The stages from the engines of int8 and a float to that of a mix, on a network of three layers."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from support.pass_checks import model_of_text
from support.small_project import lay_over, run_stages, small_project

from enginewright.core.errors import EnginewrightError
from enginewright.engine.record import EngineRecord, LayerTime, Speedup
from enginewright.graph.choose_boxes import BoxesInGraph
from enginewright.graph.files import graph_sha256
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.measure.records import Trace
from enginewright.precision import mixing
from enginewright.precision.mixing import Bench, Races, layers_in_turns, read_traces
from enginewright.precision.records import MIX, RESCUE, Mix, Rescue

GRAPH = """g (float[batch,32] input) => (float[batch,32] logits) {
    [one] a = Gemm (input, w, wb) b = Relu (a) [two] c = Gemm (b, v, vb) d = Relu (c) [three] logits = Gemm (d, u, ub)
}"""
SHAPES = {"w": (32, 64), "wb": 64, "v": (64, 64), "vb": 64, "u": (64, 32), "ub": 32}
RECIPE = """
samples: {source: data/images/points.npz, preprocessing: null, validation: 16, calibration: 64, training: 0}
model: {source: resnet18}  # no stage here asks for it, nor for its weights
weights: {source: pretrained}
calibration: {method: max}
mix: {best: {floating: fp32, seconds: 0.001, traces: null}}
precisions:
  fp32: {from: simplified, keep: {op_types: [], nodes: []}, thresholds: THRESHOLDS}
  bf16: {from: simplified, keep: {op_types: [], nodes: []}, thresholds: THRESHOLDS}
  int8: {rescue: [equalize, round]}
  best: {from: mixed, keep: {op_types: [], nodes: []}, thresholds: THRESHOLDS}
build: {profile: {batch: {min: 1, opt: 2, max: 4}}}
benchmark: {batches: [1]}
""".replace("THRESHOLDS", "{cosine: 0.9, relative_error: 0.3, agreement: 0, metric_drop: 1}")


def test_from_engines_to_that_of_their_mix(tmp_path, monkeypatch, capsys):
    small_project(tmp_path, monkeypatch, "int8")
    random = np.random.default_rng(0)
    weights = {name: random.normal(0, 0.2, shape).astype(np.float32) for name, shape in SHAPES.items()}
    scales = np.exp(random.normal(0, 1, 64)).astype(np.float32)  # which a rescue undoes
    weights |= {"w": weights["w"] * scales, "wb": weights["wb"] * scales, "v": weights["v"] / scales[:, None]}
    for folder in ("exported", "simplified"):
        Path("artifacts", folder).mkdir(parents=True)
    save_graph(model_of_text(GRAPH, weights), Path("artifacts/simplified/model.onnx"))
    BoxesInGraph().write(Path("artifacts/exported/boxes.json"))
    inputs = random.normal(size=(80, 8)) @ random.normal(size=(8, 32))
    np.savez("data/images/points.npz", input=inputs.astype(np.float32), labels=np.arange(80) % 32)
    lay_over(RECIPE)
    run_stages(monkeypatch, "machine", "samples", "calibrate", "rescue", "search")
    assert Rescue.read(Path("artifacts/rescued/int8") / RESCUE).kept == ("equalize", "round")
    for precision in ("fp32", "bf16", "int8"):
        run_stages(monkeypatch, "convert", "build", only=precision)

    # Any may win here: the answer is one of the two, or a mix that won.
    run_stages(monkeypatch, "mix", "convert", only="best")
    mix = Mix.read(Path("artifacts/mixed/best.json"))
    assert (len(mix.blocks), mix.types, mix.batch) == (3, ("int8", "fp32"), 2)
    assert mix.delivers != mix.is_one
    if mix.is_one:
        assert_is(mix.made_as)

    # Beside bf16, which not each CPU executes, fp32 takes part by itself. It is the fastest alone here, and wins.
    lay_over("mix: {best: {floating: bf16}}")
    monkeypatch.setattr(EngineRecord, "runs_its_precision", True)
    with monkeypatch.context() as none:  # nothing is traced anew where there is no mix
        none.setattr(mixing, "mixes_worth_trying", lambda times: [])
        none.delattr(mixing, "layers_in_turns")
        run_stages(monkeypatch, "mix", only="best")
    assert Mix.read(Path("artifacts/mixed/best.json")).mixed is None
    monkeypatch.setattr(mixing, "mixes_worth_trying", lambda times: [("int8", "bf16", "fp32")])
    monkeypatch.setattr(
        mixing,
        "raced_speedup",
        lambda timings, rival, number: Speedup(middle=1 + number, low=1 + number, high=1 + number),
    )
    monkeypatch.setattr(mixing, "layers_in_turns", lambda *given: [np.array([[each]]) for each in (3.0, 2.9, 2.7, 1.8)])
    monkeypatch.setattr(Races, "laps_of", lambda *given: Speedup(middle=1.0, low=0.9, high=1.1))
    run_stages(monkeypatch, "mix", "convert", only="best")
    mix = Mix.read(Path("artifacts/converted/best") / MIX)
    assert (mix.types, mix.delivers, mix.rival) == (("int8", "bf16", "fp32"), False, "fp32")
    assert_is("fp32")

    # A mix that wins.
    monkeypatch.setattr(Races, "laps_of", lambda *given: Speedup(middle=1.2, low=1.1, high=1.3))
    run_stages(monkeypatch, "mix", "convert", "build", only="best")
    mix = Mix.read(Path("artifacts/converted/best") / MIX)
    assert (mix.delivers, mix.rival, mix.promised.middle) == (True, "fp32", 1.5)
    own, its = (in_bytes(Path(f"artifacts/converted/{name}/model.onnx")) for name in ("int8", "best"))
    assert len(its) == 1
    assert its.items() <= own.items()  # what is in int8 is rounded as in int8
    best, bf16 = (EngineRecord.read(Path(f"artifacts/engines/{name}/engine.json")) for name in ("best", "bf16"))
    assert best.executed == Counter(["int8", *bf16.executed, "fp32"])
    assert "best is int8 with 1 of 3 parts in bf16 and 1 in fp32" in capsys.readouterr().out


def assert_is(precision):
    best, other = (graph_sha256(Path(f"artifacts/converted/{name}/model.onnx")) for name in ("best", precision))
    assert best == other


def in_bytes(path):
    """Return all weights in int8 of a graph by name."""
    tensors = load_graph(path).graph.initializer
    return {
        tensor.name: tensor.raw_data
        for tensor in tensors
        if tensor.data_type == TensorProto.INT8 and len(tensor.dims) > 1
    }


@pytest.fixture
def trace(tmp_path, machine):
    """Return a function that writes the traces of another machine."""

    def made(precision="int8", batch=8, names=("a", "c"), runtime=machine.runtime, given=("int8", "bf16"), **of_int8):
        folder = tmp_path / "data/traces/board"
        folder.mkdir(parents=True, exist_ok=True)
        layers = tuple(
            LayerTime(name=name, kind="", precision="int8", computes=True, milliseconds=1.0) for name in names
        )
        for name in given:
            own = precision if name == "int8" else name
            there = machine.model_copy(update=of_int8 if name == "int8" else {})
            Trace(precision=own, machine=there, batch=batch, calls=1, layers=layers).write(folder / f"{name}.json")
        places = {"a": 0, "b": 0, "c": 1}
        here = Bench(machine.model_copy(update={"runtime": runtime}), inference=None, samples=None, batch=8)
        return read_traces(str(folder), ("int8", "bf16", "fp32"), "best", places, tmp_path / "data/traces", here)

    return made


@pytest.mark.parametrize("given", [("int8", "bf16"), ("int8", "bf16", "fp32")], ids=len)
def test_the_traces_of_another_machine_are_read_and_that_of_fp32_if_it_is_there(trace, machine, given):
    found = trace(given=given)
    assert found.machine == machine
    assert found.medians == {name: [1, 1] for name in given}


WRONG = {
    "of another precision": ({"precision": "fp32"}, "is a trace of fp32 at batch 8, and not of int8 at batch 8"),
    "at another batch size": ({"batch": 1}, "is a trace of int8 at batch 1, and not of int8 at batch 8"),
    "of another graph": ({"names": ("x", "y")}, "is a trace of another graph: 0% of this one's parts"),
    "of two machines": (
        {"cores": 99},
        r"int8.json is from .*, 99 cores, and bf16.json from .*: take all on one machine",
    ),
    "of another runtime": ({"runtime": "tensorrt"}, "and graphs are made for tensorrt here: take traces with the same"),
    "without times": ({"names": ()}, "the runtime gives no times of layers"),
    "of one precision alone": ({"given": ("int8", "fp32")}, r"bf16.json is missing"),
}


@pytest.mark.parametrize(("changes", "message"), WRONG.values(), ids=list(WRONG))
def test_a_trace_that_does_not_fit_is_refused(trace, changes, message):
    with pytest.raises(EnginewrightError, match=message):
        trace(**changes)


@pytest.mark.parametrize(("seconds", "turns"), [(0.1, 15), (4, 7), (100, 5)])
def test_engines_whose_calls_are_long_are_traced_in_fewer_turns(seconds, turns, monkeypatch):
    now = itertools.count(0, 2 * seconds)  # two engines take so long in a turn
    layer = LayerTime(name="a", kind="", precision="int8", computes=True, milliseconds=1.0)
    monkeypatch.setattr(f"{layers_in_turns.__module__}.monotonic", lambda: next(now))
    monkeypatch.setattr(f"{layers_in_turns.__module__}.time_layers", lambda *given: [layer])
    here = Bench(machine=None, inference=None, samples=None, batch=8)
    one, other = layers_in_turns([Path("one"), Path("other")], here)
    assert one.shape == other.shape == (turns, 1)
