"""A plugin that is compiled here, with NVIDIA's headers, computes in engines what ONNX means."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from support.compilers import compile_plugin, find_compilers
from support.examples import require_answers_in_cpp, require_answers_in_python
from support.gpu import LIMITS, answers_meant, command, meant, relative_error
from support.pass_checks import model_of_text
from support.paths import ROOT
from support.project import make_project

from enginewright.graph.onnx_file import save_graph

NODES = """
    c = Conv <strides = [8, 8]> (input, w) [bent] g = com.microsoft.QuickGelu (c)
    f = Flatten (g) logits = MatMul (f, v)
"""
BUILD = """
import sys
from pathlib import Path
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import BuildParams
from enginewright.data.sample_set import Manifest
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.machine import Machine
from enginewright.engine.machine import target_of
onnx, machine, build, manifest, folder = sys.argv[1:]
build = BuildParams.model_validate_json(build)
target = target_of(Machine.model_validate_json(machine), build.tensorrt)
manifest = Manifest.model_validate_json(manifest)
try:
    build_engine(DescribedGraph("fp32", Path(onnx), manifest), target, build, Path(folder))
except EnginewrightError as error:
    sys.exit(f"refused: {error}")
"""
ANSWER = """
import sys
from pathlib import Path
import numpy as np
from enginewright.core.params.build import InferenceParams
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import Machine
folder, machine, replayed, questions, answers = sys.argv[1:]
inference = InferenceParams(threads=0, cuda_graph=replayed == "replayed")
with open_engine(Path(folder), Machine.model_validate_json(machine), inference) as engine:
    assert engine.replays == inference.cuda_graph
    found = [engine.run({"input": images})["logits"] for images in np.load(questions).values()]
np.savez(answers, *found)
"""


@pytest.fixture(scope="module")
def gelu_onnx(tmp_path_factory):
    """A graph with an operator that TensorRT does not know and ONNX Runtime has."""
    random = np.random.default_rng(8)
    weights = {"w": random.normal(0, 0.1, (54, 3, 8, 8)), "v": random.normal(0, 0.1, (54, 16))}
    constants = {name: each.astype(np.float32) for name, each in weights.items()}
    path = tmp_path_factory.mktemp("gelu") / "model.onnx"
    text = f"g (float[batch,3,8,8] input) => (float[batch,16] logits) {{ {NODES} }}"
    save_graph(model_of_text(text, constants), path)
    return path


@pytest.fixture(scope="module")
def compilers(machine, tmp_path_factory):
    if machine.runtime != "tensorrt":
        pytest.skip(f"{machine.runtime} has no plugins of this kind")
    return find_compilers(tmp_path_factory.mktemp("libraries"))


def in_new_process(program, *arguments):
    """Plugins stay registered in a process, so each engine is built and opened in processes of its own."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)


@pytest.fixture(scope="module", params=[(), ("-DHAND_OUT",)], ids=["registers itself", "hands out"])
def gelu_engine(request, gelu_onnx, compilers, machine, exact, manifest, tmp_path_factory):
    """An engine with the plugin. The library is deleted after the build, as the engine has a copy."""
    folder = tmp_path_factory.mktemp("gelu")
    library = compile_plugin(compilers, folder / "libgelu.so", machine.capability, *request.param)
    chosen = exact.tensorrt.model_copy(update={"plugins": (str(library),)})
    build = exact.model_copy(update={"tensorrt": chosen}).model_dump_json()
    here, engine = machine.model_dump_json(), folder / "engine"
    done = in_new_process(BUILD, gelu_onnx, here, build, manifest.model_dump_json(), engine)
    assert done.returncode == 0, done.stderr
    library.unlink()
    return engine


@pytest.mark.parametrize("how", ["plain", "replayed"])
def test_a_compiled_plugin_computes_what_onnx_means(how, gelu_engine, gelu_onnx, machine, images, tmp_path):
    questions, answers = tmp_path / "questions.npz", tmp_path / "answers.npz"
    np.savez(questions, *(images[:batch] for batch in (8, 2, 5, 8, 3)))
    done = in_new_process(ANSWER, gelu_engine, machine.model_dump_json(), how, questions, answers)
    assert done.returncode == 0, done.stderr
    for asked, got in zip(np.load(questions).values(), np.load(answers).values(), strict=True):
        assert relative_error(meant(gelu_onnx, asked), got) < LIMITS["fp32"], f"at batch {len(asked)}"


def test_the_examples_of_a_bundle_load_the_plugin(gelu_engine, gelu_onnx, machine, photos, tmp_path):
    project = make_project(tmp_path / "project", gelu_engine, gelu_onnx, machine)
    done = command("bundle", "fp32", "--out", "bundle", cwd=project)
    assert done.returncode == 0, done.stderr
    answers = answers_meant(photos, gelu_engine, gelu_onnx)
    require_answers_in_python(project / "bundle", photos, answers)
    require_answers_in_cpp(project / "bundle", photos, answers, tmp_path)


def test_a_graph_without_its_plugin_is_refused_in_a_sentence(gelu_onnx, compilers, machine, exact, manifest, tmp_path):
    arguments = (machine.model_dump_json(), exact.model_dump_json(), manifest.model_dump_json(), tmp_path / "engine")
    done = in_new_process(BUILD, gelu_onnx, *arguments)
    assert done.returncode == 1
    assert re.search(r"^refused: TensorRT cannot read .*\(QuickGelu\): .*plugin", done.stderr, re.M | re.I)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "engine").exists()
