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
    "task": """
import numpy as np
from sklearn.metrics import f1_score
from enginewright.core.params.all import Params
from enginewright.tasks.choose import task_of
params = Params.model_validate({"task": "multilabel", "weights": {"source": "data/weights/some.pt"}})
task = task_of(params.task, class_names=("red", "round", "small"))
rng = np.random.default_rng(0)
outputs, truth = {"scores": rng.normal(size=(50, 3))}, rng.integers(0, 2, (50, 3))
assert task.misfit({"scores": (50, 3)}, truth) is None
statistics = task.measure(outputs, truth, np.arange(50))
found = [metric.over(each) for metric, each in zip(task.metrics, statistics, strict=True)]
right = (outputs["scores"] > 0) == truth
assert np.allclose(found, [f1_score(truth, outputs["scores"] > 0, average="micro"), right.all(axis=1).mean()]), found
assert task.agree(outputs, outputs).mean() == 1
assert next(task.show({"scores": np.array([[1.0, -1, 2]])}, 5)).text == "red, small"
""",
    "source": """
from pathlib import Path
import numpy as np
from PIL import Image
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import Preprocessing, SamplesParams
from enginewright.data.sources import open_source
data = Path("data/images")
data.mkdir(parents=True)
pages = [Image.new("RGB", (8, 6), color) for color in ("red", "green", "blue")]
pages[0].save(data / "scan.tif", save_all=True, append_images=pages[1:])
source = open_source(SamplesParams(source=str(data / "scan.tif")), data)
how = Preprocessing(resize=6, crop=6)
found = [source.prepare(page, how).pixels[:, 0, 0].tolist() for page in range(3)]
assert found == [[255, 0, 0], [0, 128, 0], [0, 0, 255]], found
(data / "scan.tif").write_bytes(b"none")
try:
    open_source(SamplesParams(source=str(data / "scan.tif")), data)
except EnginewrightError as error:
    assert "scan.tif cannot be read" in str(error)
else:
    raise AssertionError
""",
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
from enginewright.precision.weight_only import halve_weights
keep = Params.read().precisions["w16"].keep
before = onnx.load(sys.argv[1])
onnx.save(halve_weights(onnx.load(sys.argv[1]), keep), "w16.onnx")
after = onnx.load("w16.onnx")
onnx.checker.check_model(after)
size = lambda graph: sum(numpy_helper.to_array(tensor).nbytes for tensor in graph.graph.initializer)
assert size(after) < 0.6 * size(before), (size(after), size(before))
feeds = {"input": np.random.default_rng(0).normal(size=(4, 3, 8, 8)).astype(np.float32)}
wanted, got = (run_graph(open_as_written(Path(path)), feeds)["logits"] for path in (sys.argv[1], "w16.onnx"))
error = np.linalg.norm(wanted - got) / np.linalg.norm(wanted)
assert 1e-6 < error < 0.002, error
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
from enginewright.engine.runtimes import describe_machine
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
