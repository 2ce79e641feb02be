"""The worked examples of CONTRIBUTING.md: each diff fits the code as it is, and does what is said of it."""

import os
import shutil
import subprocess
import sys

import pytest
from ruamel.yaml import YAML
from support.command import ROOT
from support.warm_python import warm_python

PATCHES = sorted((ROOT / "tests/contributing").glob("*.patch"))
COPIED = ("enginewright", "stages", "tools", "docs", "params.yaml", "dvc.yaml", "pyproject.toml")
WHAT_IT_DOES = {
    "calibration-method": """
import numpy as np
from enginewright.engine.engine import open_engine
from enginewright.precision.calibration.histogram import Histogram, choose_amax
from enginewright.core.params.all import Params
from enginewright.core.params.precisions import CalibrationParams
values = np.random.default_rng(0).normal(size=100_000).astype(np.float32)
values[0] = 50  # an outlier
histogram = Histogram(2048)
histogram.add(values)
params = Params.read().calibration.model_dump() | {"method": "sigma"}
CalibrationParams.model_validate(params)
assert 3.8 < choose_amax(histogram, "sigma", 0.0) < 4.4, choose_amax(histogram, "sigma", 0.0)
""",
    "precision": """
import numpy as np, onnx, sys
from pathlib import Path
from onnx import numpy_helper
from enginewright.core.params.all import Params
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.precision.weight_only import quantize_weights
keep = Params.read().precisions["w8"].keep
before = onnx.load(sys.argv[1])
onnx.save(quantize_weights(onnx.load(sys.argv[1]), keep), "w8.onnx")
after = onnx.load("w8.onnx")
onnx.checker.check_model(after)
size = lambda graph: sum(numpy_helper.to_array(tensor).nbytes for tensor in graph.graph.initializer)
assert size(after) < 0.3 * size(before), (size(after), size(before))
feeds = {"input": np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)}
wanted, got = (run_graph(open_as_written(Path(path)), feeds)["logits"] for path in (sys.argv[1], "w8.onnx"))
error = np.linalg.norm(wanted - got) / np.linalg.norm(wanted)
assert 1e-5 < error < 0.02, error
""",
    "runtime": """
import numpy as np, sys
from pathlib import Path
from enginewright.core.params.all import Params
from enginewright.core.params.build import InferenceParams
from enginewright.data.sample_set import Manifest
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.engine.this_machine import describe_machine
from enginewright.engine.machine import target_of
onnx, machine = Path(sys.argv[1]), describe_machine("onnx_reference")
build = Params.read().build
about = {"task": "classification", "source": "x", "inputs": ("input",), "preprocessing": None}
manifest = Manifest(**about, class_names=(), samples=())
inference = InferenceParams(threads=0, cuda_graph=False)
folder = Path("engine")
record = build_engine(DescribedGraph("fp32", onnx, manifest), target_of(machine, build.tensorrt), build, folder)
assert record.share_as_asked == 1
feeds = {"input": np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)}
wanted = run_graph(open_as_written(onnx), feeds)["logits"]
with open_engine(folder, machine, inference) as engine:
    got = engine.run(feeds)["logits"]
    engine.bind(feeds)()
assert np.allclose(wanted, got, atol=1e-5), np.abs(wanted - got).max()
""",
}


@pytest.fixture
def copy(tmp_path):
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "pictures", "results")
            )
        else:
            shutil.copy(source, tmp_path / name)
    return tmp_path


def run(root, *command):
    environment = os.environ | {"PYTHONPATH": str(root), "GIT_CEILING_DIRECTORIES": str(root.parent)}
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("patch", PATCHES, ids=lambda path: path.stem)
def test_each_worked_example_fits_and_works(patch, copy, tiny_onnx):
    run(copy, "git", "apply", str(patch))
    run(copy, sys.executable, "-m", "ruff", "check", "enginewright", "stages")
    run(copy, sys.executable, "-m", "ruff", "format", "--check", "enginewright", "stages")
    run(copy, str(warm_python() / "python3"), "-m", "enginewright.pipeline")
    run(copy, str(warm_python() / "python3"), "-c", WHAT_IT_DOES[patch.stem], str(tiny_onnx))


def test_each_worked_example_is_told_of():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert {patch.stem for patch in PATCHES} == set(WHAT_IT_DOES)
    assert all(f"](tests/contributing/{patch.name})" in text for patch in PATCHES)


def test_the_hooks_are_those_of_make_check_and_download_nothing():
    (repository,) = YAML(typ="safe").load(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"].removesuffix(" --force-exclude") for hook in repository["hooks"]]
    assert entries == [".venv/bin/ruff check", ".venv/bin/ruff format", ".venv/bin/mypy"]
    assert all(hook["language"] == "system" for hook in repository["hooks"])
