"""What a compiler gets wrong is found, cured and priced. Here it is wrong on purpose, at places that nobody tells."""

import subprocess
import tempfile
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import simulated
from onnx import TensorProto
from support.pass_checks import model_of_text
from support.paths import ROOT
from support.warm_python import warm_python
from support.wrong_compiler import be_wrong

from enginewright.core.errors import CompilerError, EnginewrightError
from enginewright.core.params.build import BenchmarkParams, InferenceParams, Profile, Range
from enginewright.engine.runtimes import describe_machine
from enginewright.precision.cure import GraphChange
from enginewright.precision.find_cure import Right, Trials, fewest, find_cure, find_cures
from enginewright.precision.islands import SPELLINGS, changed, layers_to_keep, with_island

WIDTH, LAYERS, LIMIT = 16, 12, 0.05
# The type of the graph; what the compiler makes of a node in that type; and at how many places.
FAULTS = [
    ("int8", "scaled", 1), ("int8", "no number", 1), ("int8", "at large batches", 1), ("int8", "refused", 1),
    ("int8", "scaled", 3), ("int8", "with its follower", 1), ("fp16", "scaled", 1), ("fp16", "no number", 2),
    ("fp16", "at large batches", 1), ("fp16", "with its follower", 1), ("int8", "fused", 1), ("fp16", "fused", 2),
]  # fmt: skip


def graph_in(precision, random):
    """Return products with weights one after the other, which an island must find its way around in."""
    constants, nodes, value = {}, "", "x" if precision == "int8" else "h"
    for layer in range(LAYERS):
        constants[f"w{layer}"] = random.normal(size=(WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        weights, read = f"w{layer}", value
        if precision == "int8":
            constants[weights] = np.clip(np.rint(constants[weights] * 40), -127, 127).astype(np.int8)
            nodes += f"q{layer} = QuantizeLinear ({value}, s, z) r{layer} = DequantizeLinear (q{layer}, s, z) "
            nodes += f"k{layer} = DequantizeLinear ({weights}, ws, z) "
            weights, read = f"k{layer}", f"r{layer}"
        else:
            constants[weights] = constants[weights].astype(np.float16)
        nodes += f"m{layer} = MatMul ({read}, {weights}) t{layer} = Tanh (m{layer}) "
        value = f"t{layer}"
    if precision == "int8":
        constants |= {"s": np.float32(0.02), "ws": np.float32(0.025), "z": np.int8(0)}
    ends = (
        ("", f"y = Neg ({value})")
        if precision == "int8"
        else ("h = Cast <to = 10> (x) ", f"y = Cast <to = 1> ({value})")
    )
    text = f"g (float[batch,{WIDTH}] x) => (float[batch,{WIDTH}] y) {{ {ends[0]}{nodes}{ends[1]} }}"
    model = model_of_text(text, constants)
    for node in model.graph.node:
        node.name = f"node.{node.output[0]}"
    return model


@pytest.fixture
def trials(build, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # its machine's lock is not that of other tests
    random, sized = (
        np.random.default_rng(1),
        build.model_copy(update={"profile": Profile(batch=Range(min=1, opt=4, max=8))}),
    )
    feeds = [{"x": random.normal(size=(size, WIDTH)).astype(np.float32)} for size in (4, 8, 3, 1)]
    return Trials(
        describe_machine("onnxruntime"), sized, InferenceParams(threads=1), lambda *both: both, feeds, LIMIT, 100, 60
    )


def found_for(model, trials, folder):
    try:
        trials.compile(model, GraphChange(), folder)
        engine = folder
    except CompilerError:
        engine = None
    trials.builds = 0
    return find_cure("int8", engine, folder / "model.onnx", trials, BenchmarkParams(seconds=0.02))


@pytest.mark.parametrize(
    ("number", "fault"), list(enumerate(FAULTS)), ids=[" ".join(map(str, fault)) for fault in FAULTS]
)
def test_a_planted_fault_is_found_cured_and_priced(number, fault, trials, monkeypatch, tmp_path):
    (precision, how, count), random = fault, np.random.default_rng(number)
    model = graph_in(precision, random)
    products = [node.name for node in model.graph.node if node.op_type == "MatMul"][:-1]
    places = {str(name) for name in random.choice(products, count, replace=False)}
    be_wrong(monkeypatch, places, how)
    cure = found_for(model, trials, tmp_path)
    assert cure is not None
    assert {each.change.apart for each in cure.remedies} == ({False, True} if how == "fused" else {False})
    remedy = cure.remedies[0]
    assert remedy.error <= LIMIT < (cure.error or np.inf)
    assert all({*each.change.nodes} == places for each in cure.remedies) or (
        how == "with its follower" and len(cure.change.nodes) == 1
    )
    middle, low, high = remedy.speed or (1.0, 1.0, 1.0)
    assert 0 < low <= middle <= high
    assert (remedy.speed is None) == (how == "refused") == ("was refused" in cure.in_words())
    assert cure.builds < 60


def test_an_engine_that_is_right_costs_no_build(trials, tmp_path):
    assert found_for(graph_in("int8", np.random.default_rng(0)), trials, tmp_path) is None
    assert trials.builds == 0


def test_what_no_island_cures_and_what_takes_too_long_is_said(trials, monkeypatch, tmp_path):
    model = graph_in("int8", np.random.default_rng(0))
    monkeypatch.setattr("enginewright.precision.find_cure.layers_to_keep", lambda model, in_float32: ("node.t0",))
    be_wrong(monkeypatch, {"node.m3"}, "scaled")
    with pytest.raises(EnginewrightError, match="stays wrong with all layers in high precision"):
        found_for(model, trials, tmp_path)
    trials.seconds = -1.0
    with pytest.raises(EnginewrightError, match=r"no cure was found in -1 seconds and 0 builds: allow more"):
        found_for(model, trials, tmp_path)
    trials.seconds, trials.most = 100.0, 1
    with pytest.raises(EnginewrightError, match=r"no cure was found in 100 seconds and 1 build: allow more"):
        found_for(model, trials, tmp_path)


@pytest.mark.parametrize("needed", [{3}, {0, 19}, {1, 2, 11}, set(range(20))])
def test_the_fewest_that_are_enough_are_all_that_are_needed(needed):
    assert set(fewest(range(20), lambda kept: needed <= set(kept))) == needed


@pytest.mark.parametrize(
    ("runtime", "right", "cures"),
    [
        ("tensorrt", {"another build", "optimization level 2"}, ["another build"]),
        ("openvino", {"pad_before_pooling"}, ["pad_before_pooling"]),
        (
            "tensorrt",
            {"optimization level 2", "optimization level 4"},
            ["optimization level 2", "optimization level 4"],
        ),
        ("openvino", {"optimization level 2"}, []),
    ],
    ids=["another build", "another spelling", "other levels", "a level where there are none"],
)
def test_all_that_make_the_engine_right_are_cures(runtime, right, cures, build, tmp_path):
    def attempt(model, change, scratch):
        return Right(change, scratch, 0.0) if change.in_words() in right else None

    given = {"machine": SimpleNamespace(runtime=runtime), "build": build, "is_over": False, "builds": 0, "seconds": 1}
    trials, model = SimpleNamespace(attempt=attempt, **given), graph_in("int8", np.random.default_rng(0))
    if not cures:
        with pytest.raises(EnginewrightError, match="no cure was found"):
            find_cures(model, trials, tmp_path)
        return
    found = [cure.change for cure in find_cures(model, trials, tmp_path)]
    assert [change.in_words() for change in found] == cures
    for level in (change.optimization_level for change in found):
        assert build.at_level(level).tensorrt.optimization_level == (level or 3)


def test_the_fastest_of_several_cures_is_taken(trials, monkeypatch, tmp_path):
    """The other spelling is a name that the compiler is right about."""
    model = graph_in("int8", np.random.default_rng(0))
    be_wrong(monkeypatch, {"node.m3"}, "scaled")

    def renames(graph):
        graph.graph.node("node.m3").name = "renamed"
        return True

    monkeypatch.setitem(SPELLINGS, "renames", renames)
    cure = found_for(model, trials, tmp_path)
    assert {each.change.spelling for each in cure.remedies} == {"renames", None}
    times = [each.milliseconds for each in cure.remedies]
    assert times == sorted(times)
    assert cure.remedies[1].in_words() in cure.in_words()


def test_another_spelling_is_that_of_a_pass():
    pooled = "y = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1> (x)"
    model = model_of_text(f"g (float[1,2,8,8] x) => (float[1,2,8,8] y) {{ {pooled} }}")
    spelled = changed(model, GraphChange(spelling="pad_before_pooling"))
    assert [node.op_type for node in spelled.graph.node] == ["Pad", "AveragePool"]
    assert changed(model, GraphChange(spelling="drop_idle_strides")) is None
    assert changed(model, GraphChange(spelling="a pass of another version")) is None


@pytest.mark.parametrize("precision", ["int8", "fp16"])
def test_an_island_of_all_layers_hands_on_nothing_in_low_precision(precision):
    model = graph_in(precision, np.random.default_rng(0))
    island = with_island(model, layers_to_keep(model, in_float32=True), in_float32=True)
    types = {
        each.name: each.type.tensor_type.elem_type
        for each in onnx.shape_inference.infer_shapes(island).graph.value_info
    }
    read = [types[name] for node in island.graph.node if node.op_type == "Tanh" for name in (*node.input, *node.output)]
    assert set(read) == {TensorProto.FLOAT}
    assert not any(node.op_type == "QuantizeLinear" for node in island.graph.node)


SUMS = """
import sys
from pathlib import Path
import numpy as np
from support.builds import building_here
from support.pass_checks import model_of_text
from support.paths import ROOT
from enginewright.core.params.build import BenchmarkParams, BuildParams, InferenceParams, Profile, Range
from enginewright.engine.runtimes import describe_machine
from enginewright.precision.cure import GraphChange
from enginewright.precision.find_cure import Trials, find_cure

nodes = '''a = Conv (x, v) r = Relu (a) q = QuantizeLinear (r, s, z) d = DequantizeLinear (q, s, z)
    e = QuantizeLinear (w, t, z) k = DequantizeLinear (e, t, z) [sum] c = Conv (d, k) u = Add (c, r)
    p = QuantizeLinear (u, s, z) f = DequantizeLinear (p, s, z) [last] y = Conv (f, k)'''
rng = np.random.default_rng(0)
weights = {name: rng.normal(size=(8, 8, 1, 1)).astype(np.float32) for name in "vw"}
constants = weights | {"s": np.float32(0.05), "t": np.float32(0.02), "z": np.int8(0)}
model = model_of_text(f"g (float[batch,8,4,4] x) => (float[batch,8,4,4] y) {{ {nodes} }}", constants)
feeds = [{"x": rng.normal(size=(size, 8, 4, 4)).astype(np.float32)} for size in (4, 1)]
build = BuildParams(profile=Profile(batch=Range(min=1, opt=4, max=4)))
given = build, InferenceParams(threads=1), lambda *both: both, feeds, 0.05, 100, 60
trials, folder = Trials(describe_machine("tensorrt"), *given), Path(sys.argv[1])
with building_here():
    engine = trials.compile(model, GraphChange(), folder)
    cure = find_cure("int8", folder, engine.graph, trials, BenchmarkParams(seconds=0.1))
print(cure.in_words())
print([each.change.model_dump() for each in cure.remedies])
"""


@pytest.mark.parametrize(("failure", "apart"), [("wrong_sums", False), ("wrong_fusions", True)])
def test_a_wrong_sum_of_tensorrt_is_cured(tmp_path, failure, apart):
    """The simulation computes no number where a sum takes what a product of rounded numbers makes."""
    wrong = simulated.environment("10.6", failure, TMPDIR=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    command = [warm_python() / "python3", "-c", SUMS, tmp_path / "engine"]
    done = subprocess.run(command, cwd=ROOT, env=wrong, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *builds, said, remedies = done.stdout.splitlines()
    assert sum("optimization level" in line for line in builds) == 2
    assert "it differed from its graph by " in said  # as what rounds no number makes a zero of it
    assert ("with sum in floating point (Conv) it differs by " in said) or apart
    assert " times the speed; " in said
    assert "'nodes': ('sum',), 'in_float32': False, 'apart': False" in remedies
    assert ("'nodes': ('sum',), 'in_float32': False, 'apart': True" in remedies) == apart
