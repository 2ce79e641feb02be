"""`enginewright bundle`: the content of the folder, its use without Enginewright, and what is refused."""

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
import simulated
import tomllib
from google.protobuf import text_format
from PIL import Image
from ruamel.yaml import YAML
from support.command import ROOT, enginewright
from support.pass_checks import model_of_text
from support.plugins import plugin_library
from support.project import build_project, judge, make_project
from support.texts import write_tokenizer
from support.warm_python import warm_python

from enginewright.bundle import facts as pages
from enginewright.bundle import sbom as licences
from enginewright.bundle import write
from enginewright.bundle.facts import facts_of, render, require_passed
from enginewright.bundle.write import configuration, fill, replayed_sizes, settings_for_bundle, write_bundle
from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.all import Params
from enginewright.core.params.build import Axis, Profile, Range
from enginewright.core.params.samples import Preprocessing, TextPreprocessing
from enginewright.data.preprocessing import prepare
from enginewright.data.sample_set import Manifest, PreparedTexts
from enginewright.engine.engine import open_engine
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes.onnxruntime import CHANNELS_LAST, write_layout
from enginewright.graph.interface import Interface, TensorSpec
from enginewright.measure.records import Kept, Within

TRITON = ROOT / ".venv" / "bindings" / "triton-2.73" / "tritonclient" / "grpc" / "model_config_pb2.py"
MODEL = "resnet18-fp32"
SIMULATED_ENGINE = """
import sys
from pathlib import Path
from enginewright.core.params.build import BuildParams
from enginewright.data.sample_set import Manifest
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.runtimes import describe_machine
from enginewright.engine.machine import target_of
onnx, build, manifest, folder, described, *tokenizer = sys.argv[1:]
machine, build = describe_machine("tensorrt"), BuildParams.model_validate_json(build)
Path(described).write_text(machine.model_dump_json())
graph = DescribedGraph("fp32", Path(onnx), Manifest.model_validate_json(manifest),
                       tokenizer=Path(tokenizer[0]) if tokenizer else None)
build_engine(graph, target_of(machine, build.tensorrt), build, Path(folder))
"""


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(11)
    for number in range(6):
        place = folder / f"class {number % 2}"
        place.mkdir(exist_ok=True)
        shape = (20 + 3 * number, 31, 3)
        tint = rng.integers(0, 256, 3)
        Image.fromarray((rng.integers(0, 256, shape) // 2 + tint // 2).astype(np.uint8)).save(place / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def top1(expected):
    return {name: f"class {logits.argmax()}" for name, logits in expected.items()}


@pytest.fixture
def project(tmp_path, built, tiny_onnx, machine):
    return make_project(tmp_path / "project", built, tiny_onnx, machine)


@pytest.fixture(scope="module")
def openvino_bundle(tmp_path_factory, built, tiny_onnx, machine):
    return bundled(make_project(tmp_path_factory.mktemp("openvino"), built, tiny_onnx, machine))


@pytest.fixture(scope="module")
def onnxruntime_bundle(tmp_path_factory, tiny_onnx, build, manifest):
    return bundled(build_project(tmp_path_factory.mktemp("onnxruntime"), "onnxruntime", tiny_onnx, build, manifest))


@pytest.fixture(scope="module")
def rtx_bundle(tmp_path_factory, tiny_onnx, build, manifest):
    pytest.importorskip("tensorrt_rtx")
    return bundled(build_project(tmp_path_factory.mktemp("rtx"), "tensorrt_rtx", tiny_onnx, build, manifest))


@pytest.fixture(scope="module")
def tensorrt_bundle(tmp_path_factory, plugin_onnx, build, manifest, machine):
    """Return a bundle of an engine that the simulated TensorRT built. It has a plugin, and computes what the tiny one
    does."""
    return simulated_bundle(tmp_path_factory.mktemp("tensorrt"), plugin_onnx, build, manifest, machine)


@pytest.fixture(scope="module")
def portable_bundle(tmp_path_factory, plugin_onnx, build, manifest, machine):
    """Return the same of an engine that runs with later versions of TensorRT, too, and contains a runtime for that. It
    needs plugins of a user."""
    root = tmp_path_factory.mktemp("portable")
    kinds = {"Relu": "registers itself", "GlobalAveragePool": "hands out"}
    plugins = tuple(str(plugin_library(root / f"{name}.so", kind, name)) for name, kind in kinds.items())
    options = build.tensorrt.model_copy(update={"version_compatible": True, "plugins": plugins})
    portable = build.model_copy(update={"tensorrt": options, "profiles": ({"batch": Range(min=2, opt=2, max=2)},)})
    return simulated_bundle(root, plugin_onnx, portable, manifest, machine)


@pytest.fixture(scope="module")
def stripped_bundle(tmp_path_factory, plugin_onnx, build, manifest, machine):
    """Return the same of an engine that takes its weights from model.onnx, and streams them."""
    options = build.tensorrt.model_copy(update={"weights": "stripped", "streaming": True})
    stripped = build.model_copy(update={"tensorrt": options})
    return simulated_bundle(tmp_path_factory.mktemp("stripped"), plugin_onnx, stripped, manifest, machine)


def simulated_bundle(root, plugin_onnx, build, manifest, machine, *tokenizer):
    arguments = (plugin_onnx, build.model_dump_json(), manifest.model_dump_json(), root / "engine", root / "machine")
    done = subprocess.run(
        [warm_python() / "python3", "-c", SIMULATED_ENGINE, *map(str, (*arguments, *tokenizer))],
        cwd=ROOT,
        env=simulated.environment("11.4", "few_kernels", XDG_CACHE_HOME=str(root), TMPDIR=str(root)),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    there = machine.model_validate_json((root / "machine").read_text())
    return bundled(make_project(root / "project", root / "engine", plugin_onnx, there))


def bundled(root):
    done = enginewright("bundle", "fp32", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"bundles/{MODEL}\n"
    return root / "bundles" / MODEL


def names_in(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


COMMON = {
    "README.md", "NOTICE", "LICENSE", "bundle.json", "engine/engine.json", "model.onnx", "labels.txt",
    "preprocessing.json", "preprocessing.py", "infer.py", "runtime.py", "requirements.txt",
    "sbom.cdx.json", "verify.py", "cpp/main.cpp", "cpp/CMakeLists.txt",
}  # fmt: skip
SERVED = {f"triton/{MODEL}/config.pbtxt", f"triton/{MODEL}/labels.txt"}
GPU = {"engine/engine.plan", "engine/reproduce.sh"}
OWN = {
    "openvino": {
        "engine/engine.blob",
        "reproduce.sh",
        *SERVED,
        f"triton/{MODEL}/1/model.xml",
        f"triton/{MODEL}/1/model.bin",
    },
    "onnxruntime": {"engine/engine.onnx", "reproduce.sh", *SERVED, f"triton/{MODEL}/1/model.onnx"},
    "tensorrt": {*GPU, *SERVED, f"triton/{MODEL}/1/model.plan"},
    "rtx": GPU,
}


@pytest.fixture(params=OWN)
def any_bundle(request):
    return request.param, request.getfixturevalue(f"{request.param}_bundle")


def test_a_bundle_holds_the_expected_files_and_no_others(any_bundle):
    runtime, bundle = any_bundle
    assert names_in(bundle) - {name for name in names_in(bundle) if "__pycache__" in name} == COMMON | OWN[runtime]
    manifest = json.loads((bundle / "bundle.json").read_text())
    assert manifest["precision"] == "fp32"
    assert manifest["files"].keys() == (COMMON | OWN[runtime]) - {"bundle.json"}
    assert all(sha256(bundle / name) == digest for name, digest in manifest["files"].items())


def test_the_engine_and_its_onnx_are_copies_of_those_in_the_project(any_bundle):
    _, bundle = any_bundle
    root = bundle.parents[1]
    for name in EngineRecord.read(bundle / "engine" / "engine.json").files:
        assert sha256(bundle / "engine" / name) == sha256(root / "artifacts/engines/fp32" / name)
    assert sha256(bundle / "model.onnx") == sha256(root / "artifacts/converted/fp32/model.onnx")


def test_the_readme_lists_each_file_and_the_figures(any_bundle):
    runtime, bundle = any_bundle
    text = (bundle / "README.md").read_text()
    assert "{" not in text.replace("{{", "")
    for name in {name.partition("/")[0] for name in COMMON | OWN[runtime]} - {"README.md"}:
        assert f"`{name}" in text, name
    size = EngineRecord.read(bundle / "engine" / "engine.json").bytes
    assert f"| size of the engine | {size / 1e3:.1f} kB |" in text
    assert "| accuracy | 98.40%, PyTorch 98.60%, over 512 samples |" in text
    assert "| same answer as PyTorch | 100.00% |" in text
    assert "| batch 4 | 2.50 ms (p99 3.75 ms), 1600 images/s |" in text
    assert "| against PyTorch eager, batch 4 | 4.00 times as fast (3.90 to 4.10) |" in text
    assert ("no backend for TensorRT for RTX" in text) == (runtime == "rtx")


def test_the_documentation_lists_each_file_and_no_other():
    told = (ROOT / "docs/how-to/deploy.md").read_text().partition("\n## What is in a bundle\n")[2]
    rows = [line.split("|")[1] for line in told.splitlines() if line.startswith("| `")]
    files = set().union(COMMON, *OWN.values())
    assert {name.rstrip("/") for row in rows for name in re.findall("`(.+?)`", row)} == {
        name.partition("/")[0] for name in files
    }


def test_the_notice_invents_nothing(any_bundle):
    runtime, bundle = any_bundle
    text = (bundle / "NOTICE").read_text()
    declared = {"openvino": "Apache-2.0", "onnxruntime": "MIT License", "rtx": "Proprietary"}
    assert declared.get(runtime, licences.NOT_INSTALLED) in text
    first_entry = text.split("\n\n")[1]
    files, about = first_entry.splitlines()[:2]
    assert about == "    files of Enginewright: Apache-2.0, whose text is in LICENSE"
    named = {name.rstrip("/") for name in files.split(", ")}
    assert "cpp" in named
    assert named <= {"cpp"} | names_in(bundle)
    assert {"README.md", "NOTICE", "infer.py", "runtime.py", "preprocessing.py", "requirements.txt"} <= named
    assert "check each entry, above all those of the weights and the data" in text
    assert "trained by the pipeline that made this bundle" in text


def test_a_licence_is_named_as_declared_or_with_the_reason_why_it_is_not_known(monkeypatch):
    declared = {"named": {"license_expression": "MIT"}, "old": {"license": "BSD\nand its text"}, "silent": {}}

    def metadata(name):
        if name not in declared:
            raise importlib.metadata.PackageNotFoundError(name)
        return SimpleNamespace(json=declared[name])

    monkeypatch.setattr(importlib.metadata, "metadata", metadata)
    assert licences.licence_of("absent", "named") == "MIT"
    assert licences.licence_of("old") == "BSD"
    assert licences.licence_of("silent") == "none is named in its distribution: ask its authors"
    assert licences.licence_of("absent").startswith("not known, since it is not installed here")


def test_a_bundle_carries_the_licence_of_enginewright(any_bundle):
    _, bundle = any_bundle
    assert (bundle / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license"] == licences.LICENCE


@pytest.mark.parametrize("installed", ["as a wheel", "from a checkout", "not at all"])
def test_the_text_of_the_licence_is_found_however_enginewright_is_installed(monkeypatch, tmp_path, installed):
    """A wheel has it among its files; in a checkout it lies beside the package, even before pip installs that."""
    package, text = tmp_path / "site" / "enginewright" / "__init__.py", tmp_path / "site" / "LICENSE"
    package.parent.mkdir(parents=True)
    monkeypatch.setattr(licences.enginewright, "__file__", str(package))
    text.write_text("of somebody else" if installed == "as a wheel" else "the text")
    found = []
    if installed == "as a wheel":
        within = tmp_path / "site" / "enginewright-1.dist-info" / "licenses" / "LICENSE"
        within.parent.mkdir(parents=True)
        within.write_text("the text")
        found = [SimpleNamespace(name="LICENSE", locate=lambda: within)]
    if installed == "from a checkout":
        (tmp_path / "site" / "pyproject.toml").touch()
    monkeypatch.setattr(licences.importlib.metadata, "files", lambda name: found)
    if installed == "not at all":
        with pytest.raises(EnginewrightError, match="lacks its LICENSE, which belongs into a bundle"):
            licences.licence_text()
    else:
        assert licences.licence_text() == "the text"


def run_example(bundle, *images, **more):
    """Run the example as on another machine: from elsewhere, without Enginewright on any given path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    program = (
        "import runpy, sys\n"
        f"sys.path.insert(0, {str(bundle)!r})\n"
        f"runpy.run_path({str(bundle / 'infer.py')!r}, run_name='__main__')\n"
        "used = {name.partition('.')[0] for name in sys.modules}\n"
        "print('imported:', *sorted(used & {'enginewright', 'stages', 'torch', 'onnx', 'pydantic', 'jinja2'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, images)],
        cwd=bundle.parent,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    *rows, imported = done.stdout.splitlines()
    return [row.split("\t") for row in rows], imported


def require_same_answers(rows, photos, top1):
    assert {image.removeprefix(f"{photos}/"): label for image, label, _ in rows} == top1
    assert all(0 < float(probability) <= 1 for _, _, probability in rows)


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_the_example_gives_the_answers_of_validation_without_enginewright(request, runtime, photos, top1):
    bundle = request.getfixturevalue(f"{runtime}_bundle")
    rows, imported = run_example(bundle, *sorted(photos.rglob("*.png")))
    require_same_answers(rows, photos, top1)
    assert imported == "imported:"
    assert len(set(top1.values())) > 1


def test_the_example_is_a_command(openvino_bundle, photos, top1):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    image = sorted(photos.rglob("*.png"))[0]
    command = [sys.executable, "infer.py", image]
    done = subprocess.run(command, cwd=openvino_bundle, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\t")[1] == top1[image.relative_to(photos).as_posix()]


def test_the_example_says_how_it_is_used_and_what_it_cannot_read(openvino_bundle, tmp_path):
    def run(*images):
        command = [warm_python() / "python3", "infer.py", *images]
        return subprocess.run(command, cwd=openvino_bundle, capture_output=True, text=True)

    alone, absent = run(), run(tmp_path / "absent.png")
    assert (alone.returncode, alone.stdout) == (1, "")
    assert alone.stderr.startswith("Classify images: python infer.py IMAGE...")
    assert (absent.returncode, absent.stdout) == (1, "")
    assert absent.stderr == f"{tmp_path / 'absent.png'} does not exist\n"
    assert len(absent.stderr.splitlines()) == 1


@pytest.mark.parametrize("bundle", ["tensorrt_bundle", "portable_bundle", "stripped_bundle"])
def test_the_example_for_tensorrt_runs_on_a_simulated_gpu(request, bundle, photos, top1):
    """The simulation checks calls, their order and memory, computes with ONNX Runtime, and imports Enginewright."""
    environment = simulated.environment("11.4") | {"PYTHONPATH": str(simulated.SITE)}
    rows, imported = run_example(request.getfixturevalue(bundle), *sorted(photos.rglob("*.png")), **environment)
    require_same_answers(rows, photos, top1)
    assert "torch" not in imported


def test_a_stripped_engine_is_bundled_with_its_weights_beside_it(stripped_bundle, tmp_path):
    assert names_in(stripped_bundle) == (COMMON | OWN["tensorrt"]) - {n for n in OWN["tensorrt"] if "triton" in n}
    readme = (stripped_bundle / "README.md").read_text()
    assert "which takes its weights from `model.onnx`" in readme
    assert "no model repository for Triton Inference Server: it cannot put weights into a plan" in readme
    assert "weights on the GPU | as many as its free memory holds" in readme
    script = (stripped_bundle / "engine/reproduce.sh").read_text()
    assert "--refit \\\n        --refitFromOnnx=../model.onnx" in script
    assert "(TENSORRT_PARSER nvonnxparser " in (stripped_bundle / "cpp/CMakeLists.txt").read_text()
    bundle = shutil.copytree(stripped_bundle, tmp_path / "bundle")
    (bundle / "model.onnx").write_bytes(b"other")
    environment = simulated.environment("11.4") | {"PYTHONPATH": str(simulated.SITE)}
    command = [sys.executable, "infer.py", "x.png"]
    done = subprocess.run(command, cwd=bundle, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "model.onnx does not have the weights that were validated\n")


def test_the_example_for_texts_runs_on_a_simulated_gpu(tmp_path, build, machine):
    """Texts of several lengths get what the graph computes for their ids."""
    nodes = "w = Cast <to = 1> (ids) m = Cast <to = 1> (mask) seen = Mul (w, m) x = Unsqueeze (seen, last) "
    nodes += "rows = MatMul (x, table) vector = ReduceSum <keepdims = 0> (rows, first) states = Identity (rows)"
    shapes = "(int64[batch,sequence] ids, int64[batch,sequence] mask) => "
    shapes += "(float[batch,sequence,3] states, float[batch,3] vector)"
    constants = {"last": np.array([2]), "first": np.array([1]), "table": np.array([[1, 2, -0.5]], np.float32)}
    onnx_file, tokenizer = tmp_path / "texts.onnx", write_tokenizer(tmp_path / "tokenizer.json")
    onnx.save(model_of_text(f"g {shapes} {{ {nodes} }}", constants), onnx_file)
    how = TextPreprocessing(tokenizer="t.json", longest=16, multiple_of=4, inputs=("ids", "mask"))
    prepared = PreparedTexts(how=how, tokenizer_sha256=sha256(tokenizer), vocabulary=50, cut=0, together=1)
    known = Manifest(
        task="embedding",
        source="x",
        class_names=(),
        inputs=("ids", "mask"),
        preprocessing=None,
        samples=(),
        text=prepared,
    )
    profile = Profile(batch=Range(min=1, opt=2, max=4), axes={"sequence": Axis(min=4, opt=8, max=16)})
    bundle = simulated_bundle(
        tmp_path, onnx_file, build.model_copy(update={"profile": profile}), known, machine, tokenizer
    )
    environment = simulated.environment("11.4") | {"PYTHONPATH": str(simulated.SITE)}
    rows, imported = run_example(bundle, "word3 word4", "word1 " * 9, "word7", **environment)
    sums = [2 + 7 + 8 + 3, 2 + 9 * 5 + 3, 2 + 11 + 3]
    assert [json.loads(row)["vector"] for (row,) in rows] == [[one, 2 * one, -one / 2] for one in sums]
    assert "torch" not in imported
    if shutil.which("g++"):
        write = "import infer; infer.write('texts.bin', 'word3 word4', 'word1 ' * 9)"
        subprocess.run([sys.executable, "-c", write], cwd=bundle, env=os.environ | environment, check=True)
        headers = ROOT / "tests/headers"
        flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-I", headers]
        embed, sources = tmp_path / "embed", [bundle / "cpp/main.cpp", headers / "simulated.cpp"]
        subprocess.run(["g++", *flags, "-o", embed, *sources], check=True)
        done = subprocess.run([embed, bundle / "engine/engine.plan", bundle / "texts.bin"], capture_output=True)
        assert (done.returncode, done.stderr) == (0, b"1 runs, 0 of them launched as a graph\n")
        answers = [[float(each) for each in line.split()] for line in done.stdout.splitlines()]
        assert answers == [[one, 2 * one, -one / 2] for one in sums[:2]]


@pytest.mark.parametrize(("replays", "launch"), [(True, "cudaGraphLaunch"), (False, "execute_async_v3")])
def test_the_example_replays_a_graph_if_that_is_what_was_measured(tensorrt_bundle, tmp_path, replays, launch):
    bundle = shutil.copytree(tensorrt_bundle.parents[1], tmp_path / "project") / "bundles" / MODEL
    report = bundle.parents[1] / "reports/measurements.json"
    rewrite(report, lambda found: found["precisions"][0]["benchmark"].update(cuda_graph=replays))
    bundled(bundle.parents[1])
    run = (bundle / "runtime.py").read_text().partition("    def run(")[2].partition("    return run")[0]
    assert launch in run
    assert ("cudaGraphLaunch" in (bundle / "cpp/main.cpp").read_text()) == replays
    assert ("graph_spec" in (bundle / "triton" / MODEL / "config.pbtxt").read_text()) == replays


def test_the_example_loads_no_damaged_engine(openvino_bundle, tmp_path):
    bundle = shutil.copytree(openvino_bundle, tmp_path / "bundle")
    blob = bundle / "engine" / "engine.blob"
    blob.write_bytes(blob.read_bytes()[:-1])
    command = [warm_python() / "python3", "infer.py", "x.png"]
    done = subprocess.run(command, cwd=bundle, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, "engine/engine.blob is damaged\n")


def test_the_examples_are_short_and_clean(any_bundle):
    _, bundle = any_bundle
    assert len((bundle / "infer.py").read_text().splitlines()) <= 75
    assert len((bundle / "runtime.py").read_text().splitlines()) <= 85
    done = subprocess.run(
        ["ruff", "check", "--isolated", "--select", "E,F,W,B", "--line-length", "120", bundle],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def test_the_preprocessing_is_the_code_of_validation(openvino_bundle):
    ours = (ROOT / "enginewright/data/preprocessing.py").read_text()
    assert (openvino_bundle / "preprocessing.py").read_text() == ours


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"resize": (12, 10), "resize_mode": "pad", "fill": 7},
        {"resize": (12, 10), "resize_mode": "stretch", "color": "bgr", "divide_by": 1.0},
        {"color": "grey", "layout": "nhwc", "mean": (0.5,), "std": (0.5,), "interpolation": "lanczos"},
    ],
    ids=["default", "pad", "stretch", "grey"],
)
def test_whatever_the_preprocessing_the_bundle_feeds_the_same_tensor(photos, preprocessing, tmp_path, change):
    how = Preprocessing.model_validate(preprocessing.model_dump() | change)
    shutil.copy(ROOT / "enginewright/data/preprocessing.py", tmp_path)
    (tmp_path / "preprocessing.json").write_text(settings_for_bundle(how))
    images = sorted(photos.rglob("*.png"))
    program = (
        "import json, sys, numpy; from pathlib import Path; from preprocessing import prepare\n"
        "from types import SimpleNamespace\n"
        "how = SimpleNamespace(**json.loads(Path('preprocessing.json').read_text()))\n"
        "numpy.save('fed.npy', numpy.stack([prepare(Path(image), how) for image in sys.argv[1:]]))"
    )
    command = [warm_python() / "python3", "-c", program, *map(str, images)]
    subprocess.run(command, cwd=tmp_path, check=True)
    fed = np.load(tmp_path / "fed.npy")
    assert fed.shape[1:] == how.shape
    assert np.array_equal(fed, np.stack([prepare(image, how) for image in images]))


@pytest.mark.parametrize(
    ("bundle", "chosen"),
    [
        ("tensorrt_bundle", ""),
        ("portable_bundle", "in profile 1, "),
        ("stripped_bundle", "1000 bytes of weights on the GPU, "),  # of 2000 that are free, 600 are scratch memory
    ],
)
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cpp_example_runs_in_front_of_a_stand_in_for_tensorrt(request, bundle, chosen, tmp_path):
    """It classifies three batches of two images: by one run that prepares, and a graph that is launched for each."""
    sources = [request.getfixturevalue(bundle) / "cpp/main.cpp", ROOT / "tests/headers/simulated.cpp"]
    subprocess.run(
        ["g++", "-std=c++17", "-I", ROOT / "tests/headers", "-o", tmp_path / "classify", *sources], check=True
    )

    def batch(*firsts):
        images = np.broadcast_to(np.array(firsts, np.float32)[:, None, None, None], (len(firsts), 3, 8, 8))
        return np.array(images.shape).tobytes() + images.tobytes()

    (tmp_path / "images.bin").write_bytes(batch(3, 1) + batch(4, 1) + batch(5, 9))
    plan = request.getfixturevalue(bundle) / "engine/engine.plan"
    command = [tmp_path / "classify", plan, tmp_path / "images.bin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "1", "4", "1", "5", "9"]), done.stderr
    assert done.stderr == f"{chosen}4 runs, 3 of them launched as a graph\n"
    (tmp_path / "images.bin").write_bytes(batch(3, 1)[:-1])
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "reading input failed" in done.stderr


@pytest.mark.parametrize("runtime", ["tensorrt", "rtx", "stripped"])
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_cpp_example_compiles_against_stand_in_headers(request, runtime):
    bundle = request.getfixturevalue(f"{runtime}_bundle")
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I", ROOT / "tests/headers"]
    done = subprocess.run(["g++", *flags, bundle / "cpp/main.cpp"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    library = "tensorrt_rtx" if runtime == "rtx" else "nvinfer"
    cmake = (bundle / "cpp/CMakeLists.txt").read_text()
    assert f"find_library(TENSORRT_LIBRARY {library} " in cmake
    built = re.findall(r"(?:-B|--build) (\S+)", cmake)  # outside the bundle, as verify.py wants no other files in it
    assert built == [f"/tmp/{bundle.name}"] * 2
    registers = "initLibNvInferPlugins(&logger, " in (bundle / "cpp/main.cpp").read_text()
    assert registers == ("nvinfer_plugin" in cmake) == (runtime != "rtx")


def parsed(bundle):
    """Parse with Triton's own definitions, which refuse a field or a value that it does not know."""
    assert TRITON.exists(), f"{TRITON} is missing: `make test` installs it"
    spec = importlib.util.spec_from_file_location("model_config_pb2", TRITON)
    definitions = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(definitions)
    text = (bundle / "triton" / MODEL / "config.pbtxt").read_text()
    return definitions, text_format.Parse(text, definitions.ModelConfig())


@pytest.fixture(scope="module")
def configurations(openvino_bundle, onnxruntime_bundle, tensorrt_bundle):
    """Triton's definitions register themselves once in a process."""
    bundles = {"openvino": openvino_bundle, "onnxruntime": onnxruntime_bundle, "tensorrt": tensorrt_bundle}
    found = {}
    for runtime, bundle in bundles.items():
        definitions, found[runtime] = parsed(bundle)
    return definitions, found


@pytest.mark.parametrize(
    ("runtime", "largest", "preferred"), [("openvino", 4, [4]), ("onnxruntime", 8, [4, 8]), ("tensorrt", 8, [4, 8])]
)
def test_triton_understands_the_configuration(configurations, runtime, largest, preferred):
    definitions, found = configurations
    config = found[runtime]
    assert (config.name, config.backend, config.max_batch_size) == (MODEL, runtime, largest)
    assert config.dynamic_batching.preferred_batch_size == preferred
    (source,), (target,) = config.input, config.output
    assert (source.name, source.data_type, list(source.dims)) == ("input", definitions.TYPE_FP32, [3, 8, 8])
    assert (target.name, target.data_type, list(target.dims)) == ("logits", definitions.TYPE_FP32, [16])
    assert target.label_filename == "labels.txt"
    (group,) = config.instance_group
    on_gpu = runtime == "tensorrt"
    assert group.kind == (group.KIND_GPU if on_gpu else group.KIND_CPU)
    assert list(group.profile) == (["0"] if on_gpu else [])


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_the_configuration_and_the_readme_have_what_serves_the_most_within_a_latency(
    configurations, runtime, tiny_onnx, build, manifest, tmp_path
):
    root = build_project(tmp_path, runtime, tiny_onnx, build, manifest)
    passed = require_passed("fp32", root / "artifacts", root / "reports")
    kept = Kept(batch=2, requests=3, delay=0.75, images_per_second=900, p99=4.5, low=4.2, high=4.9)
    rates = {"promised": 1000, "low": 950, "high": 1050, "least": 1.0, "curve": ((5.0, 1000.0),)}
    within = Within(milliseconds=5.0, back_to_back=None, at_random=kept, **rates)
    benchmark = passed.measured.benchmark.model_copy(update={"within": within})
    passed = passed._replace(measured=passed.measured.model_copy(update={"benchmark": benchmark}))
    config = text_format.Parse(configuration(passed, MODEL), configurations[0].ModelConfig())
    batching = config.dynamic_batching
    assert (config.max_batch_size, batching.preferred_batch_size) == (2, [2])
    assert (batching.max_queue_delay_microseconds, config.instance_group[0].count) == (750, 3)
    streams = {name: each.string_value for name, each in config.parameters.items() if name == "NUM_STREAMS"}
    assert streams == ({"NUM_STREAMS": "3"} if runtime == "openvino" else {})
    readme = render("README.md.j2", facts_of(passed, Params.read(root / "params.yaml"), MODEL))
    assert f"| images/s within 5 ms for 99 of 100, at random times | {kept.in_words} |" in readme
    assert "simulated | 1,000 (950 to 1,050) |" in readme


def test_the_configuration_has_what_each_backend_needs(configurations, tensorrt_bundle):
    _, found = configurations
    assert found["openvino"].parameters["ENABLE_BATCH_PADDING"].string_value == "YES"
    assert found["onnxruntime"].optimization.graph.level == 2
    text = (tensorrt_bundle / "triton" / MODEL / "config.pbtxt").read_text()
    assert re.search(r"TensorRT must be 11\.4\.\S+: the engine is bound to it\.", text)
    assert "a request must bring at least as many" in text


def test_triton_replays_graphs_of_the_batch_sizes_that_are_served(configurations):
    """TensorRT's kernels are launched as they were when the report was made. The profile is 2 to 8 images."""
    _, found = configurations
    cuda = {runtime: config.optimization.cuda for runtime, config in found.items()}
    assert {runtime: one.graphs for runtime, one in cuda.items()} == {
        "openvino": False, "onnxruntime": False, "tensorrt": True,
    }  # fmt: skip
    assert [spec.batch_size for spec in cuda["tensorrt"].graph_spec] == [2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize(
    ("sizes", "measured", "replayed"),
    [
        ((1, 8, 16), [1, 4], [*range(1, 17)]),
        ((1, 32, 128), [1, 64], [*range(1, 17), 32, 64, 128]),
        ((64, 64, 64), [64], [64]),
    ],
)
def test_graphs_of_large_batches_are_made_for_those_that_are_measured_or_preferred(sizes, measured, replayed):
    latencies = [SimpleNamespace(batch=batch) for batch in measured]
    passed = SimpleNamespace(
        record=SimpleNamespace(
            target=SimpleNamespace(runtime="tensorrt"),
            profile=(profile := Profile(batch=Range(min=sizes[0], opt=sizes[1], max=sizes[2]))),
            build=SimpleNamespace(all_profiles=(profile,)),
        ),
        measured=SimpleNamespace(benchmark=SimpleNamespace(cuda_graph=True, latencies=latencies)),
    )
    assert replayed_sizes(passed) == replayed


def test_onnx_runtime_is_told_on_a_gpu_what_the_engine_was_validated_with(
    configurations, tiny_onnx, build, manifest, tmp_path, monkeypatch
):
    root = build_project(tmp_path, "onnxruntime", tiny_onnx, build, manifest)
    passed = require_passed("fp32", root / "artifacts", root / "reports")
    assert passed.settings == {}
    target = passed.record.target.model_copy(update={"device": "cuda"})
    passed = passed._replace(record=passed.record.model_copy(update={"target": target}))
    write_layout(passed.folder / "engine.onnx", CHANNELS_LAST)
    assert passed.settings == {"use_tf32": "1", **CHANNELS_LAST}

    definitions, _ = configurations
    config = text_format.Parse(configuration(passed, MODEL), definitions.ModelConfig())
    (accelerator,) = config.optimization.execution_accelerators.gpu_execution_accelerator
    assert (accelerator.name, dict(accelerator.parameters)) == ("cuda", passed.settings)

    class OnTheCpu:
        def __init__(self, _, options, providers):
            assert providers == [("CUDAExecutionProvider", passed.settings)]

        def get_providers(self):
            return ["CPUExecutionProvider"]

    monkeypatch.setattr(onnxruntime, "InferenceSession", OnTheCpu)
    facts = {"target": target, "settings": passed.settings, "outputs": ["logits"]}
    exec(render("runtime/onnxruntime.py.j2", facts), example := {})
    with pytest.raises(SystemExit, match="ONNX Runtime has no CUDAExecutionProvider here"):
        example["load"](passed.folder)


def test_an_engine_with_several_profiles_is_served_in_all_of_them(portable_bundle):
    text = (portable_bundle / "triton" / MODEL / "config.pbtxt").read_text()
    assert 'profile: [ "0", "1" ]' in text
    assert "preferred_batch_size: [4, 8]" in text  # and not that of 2, for which Triton would not wait
    assert "Each graph is captured in each optimization profile." in text


def test_plugins_are_in_the_bundle_and_its_pages_name_them(portable_bundle, tensorrt_bundle):
    names = [f"{name}.so" for name in ("Relu", "GlobalAveragePool")]
    for name in names:
        assert (portable_bundle / "engine" / name).exists()
        assert (portable_bundle / "triton" / MODEL / "1" / name).exists()
    served = ";".join(f"/models/{MODEL}/1/{name}" for name in names)
    readme = (portable_bundle / "README.md").read_text()
    assert f"--backend-config=tensorrt,plugins='{served}'" in readme
    assert f"the plugins that it needs: {', '.join(names)} |" in readme
    assert "plugins" not in (tensorrt_bundle / "README.md").read_text()


def test_plugins_that_do_not_load_are_a_sentence(portable_bundle, tmp_path):
    copy = shutil.copytree(portable_bundle, tmp_path / "bundle")
    (copy / "engine/Relu.so").write_bytes(b"no library")
    rewrite(copy / "engine/engine.json", lambda record: record["files"].pop("Relu.so"))
    environment = simulated.environment("11.4") | {"PYTHONPATH": str(simulated.SITE)}
    command = [warm_python() / "python3", "infer.py", "x.png"]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"the plugins do not load: \S+/engine/Relu.so: file too short\n", done.stderr)


def test_what_loads_a_version_compatible_engine_allows_its_host_code(portable_bundle, tensorrt_bundle):
    allowed = "--backend-config=tensorrt,version-compatible=true"
    assert allowed in (portable_bundle / "README.md").read_text()
    assert "--versionCompatible" in (portable_bundle / "engine/reproduce.sh").read_text()
    assert allowed not in (tensorrt_bundle / "README.md").read_text()


@pytest.mark.parametrize(
    ("task", "inputs", "outputs"),
    [
        ("classification", {"input": (3, 8, 8)}, {"logits": (16,)}),
        ("detection", {"input": (3, "height", 8)}, {"boxes": (50, 4), "scores": (50, 3), "count": (1,)}),
        ("segmentation", {"input": (3, "height", 8)}, {"out": (5, "height", 8)}),
        ("embedding", {"ids": ("sequence",), "mask": ("sequence",)}, {"states": ("sequence", 4), "vector": (4,)}),
        ("ranking", {"ids": ("sequence",)}, {"score": (1,)}),
        ("regression", {"rows": (6,)}, {"y": ()}),
    ],
)
def test_triton_understands_the_configuration_of_each_task(configurations, project, task, inputs, outputs):
    passed = require_passed("fp32", project / "artifacts", project / "reports")
    specs = [
        tuple(TensorSpec(name=name, dtype="float32", shape=("batch", *shape)) for name, shape in each.items())
        for each in (inputs, outputs)
    ]
    interface = Interface(inputs=specs[0], outputs=specs[1])
    record = passed.record.model_copy(update={"task": task, "interface": interface})
    text = configuration(passed._replace(record=record), MODEL)
    config = text_format.Parse(text, configurations[0].ModelConfig())
    for wanted, found in ((inputs, config.input), (outputs, config.output)):
        dims = {
            name: [each if isinstance(each, int) else -1 for each in shape or (1,)] for name, shape in wanted.items()
        }
        assert {each.name: list(each.dims) for each in found} == dims
    assert [each.HasField("reshape") for each in config.output] == [shape == () for shape in outputs.values()]
    assert {each.label_filename for each in config.output} == {"labels.txt" if task == "classification" else ""}


def test_a_wrong_configuration_would_be_noticed(configurations):
    definitions, _ = configurations
    for text in ('nam: "x"', "instance_group [ { kind: KIND_TPU } ]", "max_batch_size: many"):
        with pytest.raises(text_format.ParseError):
            text_format.Parse(text, definitions.ModelConfig())


def test_triton_serves_the_engine_that_was_validated(onnxruntime_bundle, tensorrt_bundle):
    for bundle, served, engine in (
        (onnxruntime_bundle, "model.onnx", "engine.onnx"),
        (tensorrt_bundle, "model.plan", "engine.plan"),
    ):
        assert sha256(bundle / "triton" / MODEL / "1" / served) == sha256(bundle / "engine" / engine)


def test_what_triton_compiles_for_openvino_gives_the_engines_answers(
    openvino_bundle, built, machine, inference, samples
):
    """Its backend reads the model, fixes the batch at the largest size, and compiles."""
    images = samples.cycled(4)["input"]
    model = openvino.Core().read_model(openvino_bundle / "triton" / MODEL / "1" / "model.xml")
    model.get_parameters()[0].set_layout(openvino.Layout("N..."))
    openvino.set_batch(model, 4)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    with open_engine(built, machine, inference) as engine:
        wanted = engine.run({"input": images})["logits"]
    np.testing.assert_allclose(compiled(images)[0], wanted, rtol=1e-4, atol=1e-5)


def test_openvinos_own_tool_reproduces_the_measurement(openvino_bundle):
    done = subprocess.run(["bash", "reproduce.sh", "2"], cwd=openvino_bundle, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Median:\s+[\d.]+ (us|ms)", done.stdout)


def test_a_bare_loop_reproduces_the_measurement_if_there_is_no_tool(onnxruntime_bundle, tmp_path):
    script = shutil.copytree(onnxruntime_bundle, tmp_path / "copy") / "reproduce.sh"
    script.write_text(script.read_text().replace("SECONDS = 5", "SECONDS = 0.2"))
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", script, "2"], env=os.environ | {"PATH": path}, cwd="/", capture_output=True, text=True
    )
    told = r"batch 2: [\d.]+ ms, the median of \d+ calls in CPUExecutionProvider\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(told, done.stdout)


def test_the_script_for_trtexec_finds_the_onnx_of_the_bundle(tensorrt_bundle):
    script = (tensorrt_bundle / "engine" / "reproduce.sh").read_text()
    assert "--onnx=../model.onnx" in script
    assert subprocess.run(["bash", "-n"], input=script, text=True).returncode == 0


def refused(root, *arguments, precision="fp32"):
    before = names_in(root)
    done = enginewright("bundle", precision, *arguments, cwd=root)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert names_in(root) == before, "it left something behind, or took something away"
    return line.removeprefix("enginewright: ")


def rewrite(path, change):
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_only_what_passed_the_gate_is_bundled(project):
    rewrite(project / "reports/verdict.json", lambda verdict: verdict["failures"].update(fp32=["cosine 0.5 is low"]))
    assert refused(project) == "fp32 did not pass the gate and is not bundled: cosine 0.5 is low"


def test_a_verdict_that_the_measurements_contradict_is_not_accepted(project, machine):
    record = EngineRecord.read(project / "artifacts/engines/fp32/engine.json")
    judge(project, record, machine, broken=("cosine 0.5 is low",))
    assert refused(project) == "fp32 broke its thresholds: cosine 0.5 is low"


def test_an_unknown_precision_is_a_sentence(project):
    rewrite(project / "reports/verdict.json", lambda verdict: verdict["failures"].update(int8=[]))
    assert refused(project, precision="fp9") == "reports/verdict.json judges no precision 'fp9', only fp32, int8"
    assert refused(project, precision="../x").endswith("judges no precision '../x', only fp32, int8")


def test_the_report_of_another_engine_is_not_accepted(project, machine):
    record = EngineRecord.read(project / "artifacts/engines/fp32/engine.json")
    judge(project, record, machine, identity="0" * 64)
    assert "artifacts/engines/fp32 is not the engine that the report judges: run `dvc repro`" in refused(project)


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(build_seconds=record["build_seconds"] + 1),
        lambda record: record["preprocessing"].update(mean=[0.0, 0.0, 0.0]),
        lambda record: record["class_names"].reverse(),
    ],
    ids=["built again", "other preprocessing", "other class names"],
)
def test_an_engine_that_changed_after_the_report_is_not_bundled(project, change):
    rewrite(project / "artifacts/engines/fp32/engine.json", change)
    assert "is not the engine that the report judges" in refused(project)


def test_damage_is_a_sentence(project):
    blob = project / "artifacts/engines/fp32/engine.blob"
    blob.write_bytes(blob.read_bytes()[:-1])
    assert "engine.blob is damaged" in refused(project)
    blob.unlink()
    assert "engine.blob is missing" in refused(project)


def test_an_engine_of_another_onnx_is_not_bundled(project):
    onnx = project / "artifacts/converted/fp32/model.onnx"
    onnx.write_bytes(onnx.read_bytes() + b" ")
    assert "the engine was not built as fp32 of artifacts/converted/fp32/model.onnx" in refused(project)
    onnx.unlink()
    assert "artifacts/converted/fp32/model.onnx is missing: run `dvc repro`" in refused(project)


@pytest.mark.parametrize("name", ["reports/verdict.json", "reports/measurements.json"])
def test_without_a_report_nothing_is_bundled(project, name):
    (project / name).unlink()
    assert f"{name} is missing: run `dvc repro`" in refused(project)
    (project / name).write_text("{}")
    assert f"{name} is damaged or of another version of Enginewright (" in refused(project)


def test_outside_a_project_it_is_a_sentence(tmp_path):
    assert "reports/verdict.json is missing: run `dvc repro`" in refused(tmp_path)


def test_a_folder_that_is_no_bundle_stays_as_it_is(project):
    (project / "mine").mkdir()
    (project / "mine" / "thesis.txt").write_text("years of work")
    assert refused(project, "--out", "mine") == "mine is no bundle and stays as it is: give another folder with --out"
    assert "mine/thesis.txt is a file: give a folder" in refused(project, "--out", "mine/thesis.txt")
    for place in (".", "/"):  # the latter has no name that a folder beside it could be made from
        assert f"{place} is no bundle and stays as it is" in refused(project, "--out", place)


def test_a_bundle_is_replaced_unless_somebody_worked_in_it(project):
    first = bundled(project)
    (first / "__pycache__").mkdir()
    (first / "__pycache__" / "infer.pyc").write_text("")
    (first / "labels.txt").write_text("my own names\n")
    assert "would be replaced, but labels.txt was changed: save it" in refused(project)
    (first / "labels.txt").unlink()
    (first / "notes.txt").write_text("mine")
    assert "would be replaced, but notes.txt is none of its files: save it" in refused(project)
    (first / "notes.txt").unlink()
    assert "labels.txt" in names_in(bundled(project))


def test_two_bundles_at_once_wait_for_each_other(project, monkeypatch):
    """Each would remove the unfinished files of the other, as what a kill left."""
    monkeypatch.chdir(project)
    monkeypatch.setattr(write, "fill", lambda *given: (time.sleep(0.1), fill(*given)))
    with ThreadPoolExecutor() as both:
        passed = require_passed("fp32", Path("artifacts"), Path("reports"))
        assert (
            list(both.map(lambda _: write_bundle(passed, Params.read(), Path("both")), range(2))) == [Path("both")] * 2
        )


@pytest.mark.parametrize("name", ["engine.json", "engine.blob", "model.onnx"])
def test_an_engine_that_changes_while_it_is_packed_is_refused(project, monkeypatch, name):
    def fill_and_change(passed, params, model, folder, signed):
        fill(passed, params, model, folder, signed)
        with next(folder.rglob(name)).open("ab") as file:
            file.write(b"\n ")

    monkeypatch.chdir(project)
    monkeypatch.setattr(write, "fill", fill_and_change)
    if name == "engine.json":  # whole, but another one
        monkeypatch.setattr(write, "read_engine", lambda folder: None)
    with pytest.raises(EnginewrightError, match="was changed while it was packed, as by `dvc repro`: pack it again"):
        write_bundle(require_passed("fp32", Path("artifacts"), Path("reports")), Params.read(), None)
    assert not list(project.glob("bundles/*"))


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("pets:network", "pets-network"),
        ("zoo.models:Small", "zoo.models-Small"),
        ("data/models/my net.onnx", "my-net"),
    ],
)
def test_the_bundle_has_the_name_of_a_users_own_model(project, source, name):
    """It includes the module, because names of functions are often the same."""
    params = YAML(typ="safe").load((project / "params.yaml").read_text())
    params["model"]["source"], params["weights"]["source"] = source, "given"
    params["benchmark"]["baselines"] = ["onnxruntime"]
    YAML(typ="safe").dump(params, project / "params.yaml")
    done = enginewright("bundle", "fp32", cwd=project)
    assert (done.stdout, done.stderr) == (f"bundles/{name}-fp32\n", "")
    assert (project / f"bundles/{name}-fp32/triton/{name}-fp32/config.pbtxt").is_file()


def test_before_the_first_run_it_says_what_makes_the_engine(project):
    """A fresh clone has the last report, but no engines."""
    shutil.rmtree(project / "artifacts")
    assert refused(project) == (
        "there is no engine artifacts/engines/fp32: `dvc repro` makes one per precision, in artifacts/engines"
    )


def test_out_chooses_the_folder(project, tmp_path):
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "deep" / "er", tmp_path / "empty"):
        done = enginewright("bundle", "fp32", "--out", place, cwd=project)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{place}\n", "")
        assert (place / "bundle.json").exists()


def test_a_place_that_cannot_be_written_to_is_a_sentence(project):
    assert refused(project, "--out", "/proc/bundle").startswith("/proc/")


def test_all_templates_are_part_of_the_package():
    (pattern,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"][
        "enginewright.bundle"
    ]
    folder = ROOT / "enginewright" / "bundle"
    assert {path for path in pages.TEMPLATES.rglob("*") if path.is_file()} <= set(folder.glob(f"{pattern}/*")) | set(
        folder.glob(pattern)
    )


def test_a_missing_fact_is_an_error_not_an_empty_place():
    with pytest.raises(Exception, match="'reproduce' is undefined"):
        pages.render("NOTICE.j2", {"served": False})


def test_a_bundle_says_that_its_engine_ran_as_another_type(tmp_path, built, tiny_onnx, machine):
    path = shutil.copytree(built, tmp_path / "fp32") / "engine.json"
    record = json.loads(path.read_text())
    record["layers"] = [layer | {"precision": "bf16"} for layer in record["layers"]]
    path.write_text(json.dumps(record))
    project = make_project(tmp_path / "project", path.parent, tiny_onnx, machine)
    done = enginewright("bundle", "fp32", cwd=project)
    assert (done.returncode, done.stdout) == (0, f"bundles/{MODEL}\n")
    assert done.stderr == "fp32 ran as bf16 where it was judged, and is never recommended\n"
    page = project / done.stdout.strip() / "README.md"
    assert "None of it was executed in fp32 on that machine, but in bf16" in page.read_text()
    assert "What is in doubt" in page.read_text()


def test_what_the_report_doubts_is_in_the_bundle_and_on_stderr(project):
    def doubt(found):
        measured = found["precisions"][0]
        measured["validation"]["unsure"] = ["accuracy drop 0.10% may be above 0.20%: 2,000 samples would tell"]
        measured["benchmark"]["contention"].update(stolen=0.5)
        measured["benchmark"]["ratios"][0].update(low=1.0, high=9.0)

    rewrite(project / "reports/measurements.json", doubt)
    apart = "fp32 and int8 cannot be told apart on this machine today"
    rewrite(project / "reports/verdict.json", lambda found: found.update(recommended=None, doubt=f"{apart}."))
    done = enginewright("bundle", "fp32", cwd=project)
    few, told, stolen = done.stderr.splitlines()
    assert few.startswith("not sure, the samples are too few: accuracy drop 0.10% may be above 0.20%")
    assert told == apart
    assert stolen.startswith("its timings may be off: the host took 0.50 of")
    table, _, section = (project / f"bundles/{MODEL}/README.md").read_text().partition("## What is in doubt\n\n")
    assert section.startswith("".join(f"- {doubt}\n" for doubt in (few, told, stolen)))
    assert "times as fast (1.00 to 9.00), but noisy |" in table


def test_p99_of_few_calls_is_not_published(project):
    def few(found):
        for latency in found["precisions"][0]["benchmark"]["latencies"]:
            latency["runs"] = 99

    rewrite(project / "reports/measurements.json", few)
    assert "| batch 4 | 2.50 ms, 1600 images/s |" in (bundled(project) / "README.md").read_text()
