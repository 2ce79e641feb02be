"""A fault is found in the few nodes that show it, and the script that is sent fails without Enginewright."""

import subprocess
import sys

import numpy as np
import pytest
import simulated
from onnx import TensorProto, helper, numpy_helper
from support.paths import ROOT
from support.warm_python import warm_python

from enginewright.core.errors import EnginewrightError
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine, load_runtime
from enginewright.precision.write_int8 import Bounds, Rounding, tensors_in_int8, write_int8
from tools.reduction.case import Case
from tools.reduction.reduce import DIFFERS, REFUSED, Fault, Setup, reduce_fault, require_replaceable, run_case, summary

FLOAT = TensorProto.FLOAT
RUNS = [{"input": np.random.default_rng(3).normal(size=(size, 3, 8, 8)).astype(np.float32)} for size in (4, 1)]
FAILS = "import os, sys; graph = open('model.onnx', 'rb').read()\nif {condition}: {failure}"
HAS_RELU, HAS_BOTH = "b'Relu' in graph", "b'Conv' in graph and b'GlobalAveragePool' in graph"


@pytest.fixture(autouse=True)
def _warm(monkeypatch, request):
    """Start each trial by a Python that has imported ONNX Runtime and OpenVINO, but for one whose signal counts."""
    if "crash" not in request.node.name:
        monkeypatch.setattr(sys, "executable", str(warm_python() / "python3"))


def setup(runtime, build, limit=0.02, cured=False):
    return Setup(target_of(describe_machine(runtime), build.tensorrt), limit, cured)


def operators(case):
    return [node.op_type for node in case.model.graph.node]


def in_bytes(graph):
    names = tensors_in_int8(graph)
    return write_int8(graph, Rounding(dict.fromkeys(names, Bounds(-4.0, 4.0))))


def model_of(nodes, constants=None):
    ends = [[helper.make_tensor_value_info(name, FLOAT, ["batch", 3, None, None])] for name in ("input", "logits")]
    given = [numpy_helper.from_array(np.asarray(value), name) for name, value in (constants or {}).items()]
    graph = helper.make_graph(nodes, "graph", *ends, given)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def in_bf16():
    return model_of(
        [
            helper.make_node("Cast", ["input"], ["narrow"], to=TensorProto.BFLOAT16),
            helper.make_node("Relu", ["narrow"], ["positive"]),
            helper.make_node("Sigmoid", ["positive"], ["bounded"]),
            helper.make_node("Cast", ["bounded"], ["logits"], to=FLOAT),
        ]
    )


@pytest.mark.parametrize(
    ("condition", "failure", "kind", "left"),
    [
        (HAS_RELU, f"print('relative error 1'); sys.exit({DIFFERS})", "differs", ["Relu"]),
        (HAS_RELU, "os.abort()", "crashes", ["Relu"]),
        (HAS_BOTH, f"print('no kernel'); sys.exit({REFUSED})", "refused", ["Conv", "GlobalAveragePool"]),
        (
            "b'Gemm' in graph",
            f"print('bad Gemm' if {HAS_RELU} else 'no memory'); sys.exit({REFUSED})",
            "refused",
            ["Relu", "Gemm"],
        ),
    ],
    ids=["wrong", "crash", "two nodes", "refused for another reason"],
)  # fmt: skip
def test_the_nodes_that_show_a_fault_are_left(condition, failure, kind, left, tiny_graph, build, tmp_path, monkeypatch):
    script = FAILS.format(condition=condition, failure=failure)
    monkeypatch.setattr("tools.reduction.reduce.Setup.script", lambda *_: script)
    case, fault = reduce_fault(Case(tiny_graph, RUNS), setup("onnxruntime", build), 60, tmp_path / "found")
    assert (operators(case), fault.kind, len(case.runs)) == (left, kind, 1)
    assert {path.name for path in (tmp_path / "found").iterdir()} == {
        "README.md", "expected.npz", "fails.py", "inputs.npz", "model.onnx",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("needed", "code", "left"),
    [
        ("graph.count(b'Gather') > 1", REFUSED, ["Gather", "Gather", "Mul"]),
        ("graph.count(b'Gather') > 1 and b'Sigmoid' in graph", DIFFERS, ["Gather", "Gather", "Sigmoid", "Mul"]),
    ],
    ids=["refused", "values matter"],
)
def test_what_meets_again_meets_directly(needed, code, left, build, tmp_path, monkeypatch):
    nodes = [
        helper.make_node("Gather", ["input", "first"], ["key"], axis=0),
        helper.make_node("Gather", ["input", "second"], ["value"], axis=0),
        helper.make_node("Transpose", ["key"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("Sigmoid", ["turned"], ["score"]),
        helper.make_node("Mul", ["score", "value"], ["logits"]),
    ]
    script = FAILS.format(condition=f"({needed}) and b'Mul' in graph", failure=f"print('not right'); sys.exit({code})")
    monkeypatch.setattr("tools.reduction.reduce.Setup.script", lambda *_: script)
    case = Case(model_of(nodes, {"first": 0, "second": 1}), [{"input": RUNS[0]["input"][:2]}])
    case, _ = reduce_fault(case, setup("onnxruntime", build), 60, tmp_path / "found")
    assert operators(case) == left
    assert len(case.model.graph.input) == (1 if code == REFUSED else 2)


def test_a_case_without_time_is_not_reduced_and_said_to_be_so(tiny_graph, build, tmp_path, monkeypatch):
    script = FAILS.format(condition=HAS_RELU, failure=f"sys.exit({DIFFERS})")
    monkeypatch.setattr("tools.reduction.reduce.Setup.script", lambda *_: script)
    case, fault = reduce_fault(Case(tiny_graph, RUNS), setup("onnxruntime", build), 0, tmp_path / "found")
    assert operators(case) == operators(Case(tiny_graph, RUNS))
    assert summary(case, fault, tmp_path, seconds_left=False).endswith("The time was over: allow more with --seconds")


def test_a_case_that_fails_again_is_written(tiny_graph, build, tmp_path, monkeypatch):
    """Without Conv the fault shows in the search alone."""
    condition = f"{HAS_RELU} and (b'Conv' in graph or 'found' not in os.getcwd())"
    script = FAILS.format(condition=condition, failure=f"print('relative error 1'); sys.exit({DIFFERS})")
    monkeypatch.setattr("tools.reduction.reduce.Setup.script", lambda *_: script)
    case, _ = reduce_fault(Case(tiny_graph, RUNS), setup("onnxruntime", build), 60, tmp_path / "found")
    assert {"Conv", "Relu"} <= set(operators(case))
    assert len(case.nodes) < len(tiny_graph.graph.node)


ENDS_WITH_PARENT = """import ctypes, sys
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal))
sys.exit(2 if signal.value == 9 else 0)"""


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (ENDS_WITH_PARENT, Fault("differs", "")),
        ("import time; time.sleep(60)", Fault("hangs", "no answer within 3 s")),
        ("import no_such_package", r"cannot run here.*No module named 'no_such_package'"),
        ("import sys; print('empty'); sys.exit(4)", r"fails\.py: empty: give a graph or samples"),
    ],
)
def test_a_script_that_fails_by_itself_is_no_fault_of_the_compiler(script, said, tiny_graph, tmp_path):
    case = Case(tiny_graph, RUNS[1:])
    if isinstance(said, Fault):
        assert run_case(case, script, tmp_path, seconds=3) == said
    else:
        with pytest.raises(EnginewrightError, match=said):
            run_case(case, script, tmp_path)


@pytest.mark.parametrize(
    ("right", "given", "error"),
    [
        (np.float32([3, 4]), np.float32([3, 4.5]), 0.1),
        (np.float32([3, np.inf]), np.float32([3, np.inf]), 0),
        (np.float32([3, np.inf]), np.float32([3, -np.inf]), np.inf),
        (np.float32([3, np.nan]), np.float32([3, np.inf]), np.inf),
        (np.float32([3, 4]), np.float32([[3, 4]]), np.inf),
        (np.int64([1, 2, 3, 4]), np.int64([1, 2, 3, 5]), 0.25),
        (np.int64([1, 2]), np.int64([[1, 2]]), np.inf),
        (np.bool_([True, False]), np.bool_([True, True]), 0.5),
        (np.uint8([0, 255]), np.uint8([1, 0]), 0.5),
        (np.int8([-128, 127]), np.int8([-127, 127]), 0),
        (np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32), 0),
    ],
)
def test_the_script_compares_every_type(right, given, error, build):
    script = {"__name__": "script", "__file__": "fails.py"}
    exec(setup("onnxruntime", build).script(), script)
    assert script["error_of"](right, given) == pytest.approx(error)


def test_a_folder_of_the_users_is_not_replaced(tmp_path):
    require_replaceable(tmp_path)
    require_replaceable(tmp_path / "new")
    (tmp_path / "mine.txt").touch()
    for place in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(EnginewrightError, match="was not written by `enginewright reduce`: give another folder"):
            require_replaceable(place)
    (tmp_path / "fails.py").touch()
    require_replaceable(tmp_path)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_part_computes_what_the_whole_does(precision, tiny_graph):
    whole = Case({"fp32": tiny_graph, "bf16": in_bf16(), "int8": in_bytes(tiny_graph)}[precision], RUNS)
    count = len(whole.units)
    for units in ([count - 1], [0, 1], [1, 2], range(count)):
        part = whole.part(units)
        for run, expected in enumerate(part.expected):
            for name, values in expected.items():
                origin = name.removesuffix(".float32")
                wanted = whole._values([origin], run)[origin]
                np.testing.assert_allclose(values, wanted, rtol=1e-5, err_msg=name)


def scaled():
    """Factors per channel, some of them negative, before a rounding: OpenVINO applies the first to all."""
    nodes = [
        helper.make_node("Mul", ["input", "factors"], ["scaled"]),
        helper.make_node("QuantizeLinear", ["scaled", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["rounded"]),
        helper.make_node("Sigmoid", ["rounded"], ["logits"]),
    ]
    factors = np.float32([-0.2, 0.5, -0.7]).reshape(3, 1, 1)
    return model_of(nodes, {"factors": factors, "scale": np.float32(0.05), "zero": np.int8(0)})


def test_a_fault_of_openvino_is_found_without_its_cure_and_shows_without_enginewright(build, tmp_path):
    case = Case(scaled(), RUNS)
    with pytest.raises(EnginewrightError, match=r"OpenVINO computes what this graph means.*--without-cures"):
        reduce_fault(case, setup("openvino", build, cured=True), 60, tmp_path / "right")
    least, fault = reduce_fault(case, setup("openvino", build), 60, tmp_path / "found")
    assert operators(least) == ["Mul", "QuantizeLinear", "DequantizeLinear"]
    assert (fault.kind, least.operations) == ("differs", 2)
    alone = subprocess.run([sys.executable, "-I", tmp_path / "found/fails.py"], capture_output=True, text=True)
    assert (alone.returncode, alone.stdout) == (DIFFERS, f"{fault.message}\n")
    assert "OpenVINO 2" in (tmp_path / "found/README.md").read_text()


@pytest.mark.skipif(load_runtime("tensorrt_rtx").missing() is not None, reason="TensorRT for RTX is not installed")
def test_what_nvidias_parser_refuses_is_found(build, tmp_path):
    nodes = [
        helper.make_node("Einsum", ["input", "input"], ["products"], equation="bchW,bchV->bcWV"),
        helper.make_node("Relu", ["products"], ["logits"]),
    ]
    model = model_of(nodes)
    rtx = setup("tensorrt_rtx", build)
    least, fault = reduce_fault(Case(model, RUNS), rtx, 60, tmp_path / "found")
    assert (operators(least), fault.kind) == (["Einsum"], "refused")
    model.graph.node[0].attribute[0].s = b"bchw,bchv->bcwv"
    with pytest.raises(EnginewrightError, match="TensorRT for RTX builds this graph"):
        reduce_fault(Case(model, RUNS), rtx, 60, tmp_path / "right")


SUMS = """
import sys
from pathlib import Path
import numpy as np
from support.pass_checks import model_of_text
from enginewright.core.params.build import TensorRTParams
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from tools.reduction.case import Case
from tools.reduction.reduce import Setup, reduce_fault

nodes = '''a = Conv (x, v) r = Relu (a) q = QuantizeLinear (r, s, z) d = DequantizeLinear (q, s, z)
    e = QuantizeLinear (w, t, z) k = DequantizeLinear (e, t, z) c = Conv (d, k) u = Add (c, r) b = Sigmoid (u)
    y = Mul (b, u)'''
rng = np.random.default_rng(0)
weights = {name: rng.normal(size=(8, 8, 1, 1)).astype(np.float32) for name in "vw"}
constants = weights | {"s": np.float32(0.05), "t": np.float32(0.02), "z": np.int8(0)}
model = model_of_text(f"g (float[batch,8,4,4] x) => (float[batch,8,4,4] y) {{ {nodes} }}", constants)
runs = [{"x": rng.normal(size=(size, 8, 4, 4)).astype(np.float32)} for size in (4, 1)]
setup = Setup(target_of(describe_machine("tensorrt"), TensorRTParams()), 0.02, cured=False)
least, fault = reduce_fault(Case(model, runs), setup, 300, Path(sys.argv[1]))
print(fault.kind, *(node.op_type for node in least.model.graph.node))
"""


def test_a_wrong_result_of_tensorrt_is_reduced_and_shown_by_a_script_and_by_polygraphy(tmp_path):
    """The simulation is wrong on purpose where a sum takes what a product of rounded numbers makes."""
    folder, wrong = tmp_path / "found", simulated.environment("10.6", "wrong_sums")
    python = warm_python() / "python3"  # which starts each trial by its like
    done = subprocess.run([python, "-c", SUMS, folder], cwd=ROOT, env=wrong, capture_output=True, text=True)
    assert "differs" in done.stdout, done.stderr
    kind, *left = done.stdout.splitlines()[-1].split()
    assert kind == "differs"
    assert {*left} == {"QuantizeLinear", "DequantizeLinear", "Conv", "Add"}, done.stdout
    for environment, status in ((wrong, DIFFERS), (simulated.environment("10.6"), 0)):
        ran = subprocess.run([python, "fails.py"], cwd=folder, env=environment, capture_output=True, text=True)
        assert ran.returncode == status, ran.stdout + ran.stderr
    readme = (folder / "README.md").read_text()
    assert "TensorRT 10.6" in readme
    (command,) = (line.split() for line in readme.splitlines() if line.startswith("    polygraphy run "))
    own = [word for word in command if not word.startswith(("--trt", "--strongly", "'"))]  # its profile is TensorRT's
    code = "import sys; from polygraphy.tools import main; sys.exit(main())"
    by_onnxruntime = [python, "-c", code, *own[1:], "--onnxrt", "--providers", "CPUExecutionProvider"]
    ran = subprocess.run(by_onnxruntime, cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
