"""The script that compares an engine with its graph, run by the real Polygraphy wherever the engine can run here."""

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.plugins import plugin_library
from support.warm_python import warm_python

from enginewright.core.params.precisions import Keep
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import describe_machine
from enginewright.engine.tools import comparison_script, write_comparison
from enginewright.graph.onnx_file import save_graph
from enginewright.precision.cast import cast

FEEDS = [{"input": np.random.default_rng(5).normal(0, 1, (batch, 3, 8, 8)).astype(np.float32)} for batch in (7, 2)]


@pytest.fixture(scope="module")
def onnx_of(tiny_onnx, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graphs")
    save_graph(cast(tiny_onnx, "bf16", Keep(op_types=(), nodes=())), folder / "bf16.onnx")
    return {"fp32": tiny_onnx, "bf16": folder / "bf16.onnx"}


@pytest.fixture
def built_by(onnx_of, build, manifest, tmp_path):
    """Build with a runtime that needs no GPU, and write the script."""

    def make(runtime, precision="fp32", **options):
        chosen = build.model_copy(update={"tensorrt": build.tensorrt.model_copy(update=options)})
        machine, folder = describe_machine(runtime), tmp_path / precision
        target = target_of(machine, chosen.tensorrt)
        record = build_engine(DescribedGraph(precision, onnx_of[precision], manifest), target, chosen, folder)
        write_comparison(record, onnx_of[precision], FEEDS, folder)
        return folder

    return make


def run(folder, *options):
    path = f"{warm_python()}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", folder / "polygraphy.sh", *options], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_an_engine_that_computes_what_its_graph_means_passes(built_by, precision):
    folder = built_by("onnxruntime", precision)
    before = sorted(folder.iterdir())
    done = run(folder)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    assert "Passed: 2/2 iterations" in done.stdout
    assert sorted(folder.iterdir()) == before  # else DVC would find the engine changed


def test_an_engine_that_computes_something_else_fails(built_by):
    folder = built_by("onnxruntime")
    model = onnx.load(folder / "engine.onnx")
    (weights,) = [tensor for tensor in model.graph.initializer if tensor.name == "w3"]
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights)[::-1].copy(), "w3"))
    onnx.save(model, folder / "engine.onnx")
    done = run(folder)
    assert (done.returncode, "FAILED" in done.stdout + done.stderr) == (1, True)


def test_what_is_asked_of_polygraphy_for_a_plan_is_what_it_takes(built_by, tmp_path):
    """Its options are checked by writing a program instead of running one, as no plan runs without a GPU."""
    pytest.importorskip("tensorrt_rtx")
    folder = built_by("tensorrt_rtx", plugins=(str(plugin_library(tmp_path / "own.so", "registers nothing")),))
    done = run(folder, "--gen-script", str(tmp_path / "program.py"))
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-1000:]
    program = (tmp_path / "program.py").read_text()
    for part in ("EngineFromBytes", "'./own.so'", "cosine_similarity_threshold={'': 0.99999}", "inputs.json"):
        assert part in program
    assert "POLYGRAPHY_USE_TENSORRT_RTX=1" in (folder / "polygraphy.sh").read_text()


def test_there_is_no_script_where_polygraphy_has_no_such_runtime(built_by):
    assert [path.name for path in built_by("openvino").iterdir() if "polygraphy" in path.name] == []


@pytest.mark.parametrize("in_python", [False, True], ids=["not installed", "in python3's packages"])
def test_without_polygraphy_on_the_path(built, onnx_of, tmp_path, in_python):
    """pip may install it where the PATH does not lead."""
    record = EngineRecord.read(built / "engine.json")
    (tmp_path / "polygraphy.sh").write_text(comparison_script(record, onnx_of["fp32"], tmp_path))
    for tool in ("dirname", "mktemp", "rm"):
        (tmp_path / tool).symlink_to(Path(shutil.which(tool)))
    (tmp_path / "python3").write_text(f"#!{shutil.which('bash')}\n{'echo $*' if in_python else 'exit 1'}\n")
    (tmp_path / "python3").chmod(0o755)
    command = [shutil.which("bash"), tmp_path / "polygraphy.sh"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True)
    if in_python:
        assert (done.returncode, done.stdout.count("from polygraphy.tools import main; sys.exit(main()) run ")) == (
            0,
            2,
        )
    else:
        sentence = "polygraphy is neither on the PATH nor in python3's packages: pip install polygraphy\n"
        assert (done.returncode, done.stderr) == (1, sentence)
