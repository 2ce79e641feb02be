"""The example of each bundle answers as its engine, with NumPy and the runtime alone, in Python and in C++."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
from PIL import Image
from support.command import ROOT, enginewright
from support.detectors import small_detector
from support.pass_checks import model_of_text
from support.project import make_project
from support.quantized import quantize_with_onnxruntime
from support.texts import write_tokenizer
from support.warm_python import warm_python

from enginewright.core.facts import ADDS_EXACTLY
from enginewright.core.files import sha256
from enginewright.core.params.build import Axis, Profile, Range
from enginewright.core.params.model import BoxesParams
from enginewright.core.params.samples import Preprocessing, TextPreprocessing
from enginewright.data.sample_set import MANIFEST, Manifest, PreparedTexts, Sample, input_file
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import target_of
from enginewright.engine.runtimes import describe_machine
from enginewright.graph.pixels import take_pixels

PACKAGE = Path(openvino.__file__).parent
FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-O0"]
BATCH = Range(min=2, opt=2, max=4)
ARRAYS = ("rows", "audio", "several", "sized", "map")
KINDS = (*ARRAYS, "texts", "boxes")
SITE = {"openvino": ["openvino"], "onnxruntime": ["onnxruntime"]}
READERS = {"texts": ["tokenizers"], "boxes": ["PIL", "pillow.libs"]}


def graph_of(kind, request):
    rng = np.random.default_rng(0)
    if kind == "rows":
        weights = {"w": rng.normal(size=(6, 3)).astype(np.float32)}
        return model_of_text("g (float[batch,6] file) => (float[batch,3] y) { y = MatMul (file, w) }", weights)
    if kind == "audio":
        weights = {"w": rng.normal(size=(4, 2, 3)).astype(np.float32)}
        nodes = (
            "found = Conv <pads = [1, 1]> (wave, w) louder = Relu (found) sum = ReduceSum <keepdims = 0> (found, last)"
        )
        weights["last"] = np.array([2])
        outputs = "float[batch,4,frames] louder, float[batch,4] sum"
        return model_of_text(f"g (float[batch,2,frames] wave) => ({outputs}) {{ {nodes} }}", weights)
    if kind == "map":
        weights = {"w": rng.normal(size=(5, 3, 3, 3)).astype(np.float32)}
        nodes = "found = Conv <pads = [1, 1, 1, 1]> (input, w)"
        return model_of_text(f"g (float[batch,3,8,8] input) => (float[batch,5,8,8] found) {{ {nodes} }}", weights)
    if kind == "texts":
        nodes = "w = Cast <to = 1> (ids) m = Cast <to = 1> (mask) seen = Mul (w, m) x = Unsqueeze (seen, last) "
        nodes += "rows = MatMul (x, table) vector = ReduceSum <keepdims = 0> (rows, first)"
        constants = {"last": np.array([2]), "first": np.array([1]), "table": np.array([[1, 2, -0.5]], np.float32)}
        shapes = "(int64[batch,sequence] ids, int64[batch,sequence] mask) => (float[batch,3] vector)"
        return model_of_text(f"g {shapes} {{ {nodes} }}", constants)
    if kind == "boxes":
        return small_detector("yolov8")
    return onnx.load(request.getfixturevalue("pair_onnx" if kind == "several" else "sized_onnx"))


def feeds_of(kind):
    rng = np.random.default_rng(1)

    def noise(*shape):
        return rng.normal(size=(3, *shape)).astype(np.float32)

    return {
        "rows": {"file": noise(6)},
        "audio": {"wave": noise(2, 11)},
        "several": {"image": noise(3, 9, 10), "numbers": rng.integers(0, 6, (3, 2))},
        "sized": {"image": noise(3, 8, 8)},
        "map": {"input": rng.integers(0, 256, (3, 3, 8, 8), np.uint8)},
    }.get(kind, {})


PROFILES = {
    "audio": {"axes": {"frames": Axis(min=4, opt=8, max=16, inputs={"wave": 2})}},
    "several": {"height": Range(min=8, opt=8, max=16), "width": Range(min=8, opt=8, max=12)},
    "sized": {
        "axes": {name: Axis(min=4, opt=6, max=16, values={"sizes": n}) for n, name in enumerate(("rows", "columns"))}
    },
    "texts": {"axes": {"sequence": Axis(min=4, opt=8, max=16)}},
}
PIXELS = {"boxes": "nhwc", "map": "nchw"}
TASKS = {"boxes": "detection", "texts": "embedding", "map": "segmentation"}


def made(kind, runtime, build, tmp_path, request, precision="fp32"):
    """Make a project with the kind's tiny model, its engine and its samples, and the bundle."""
    path = tmp_path / "model.onnx"
    onnx.save(graph_of(kind, request), path)
    if precision == "int8":
        quantize_with_onnxruntime(path, path, feeds_of(kind))
    samples, values, tokenizer = feeds_of(kind), {"sizes": (6, 5)} if kind == "sized" else {}, None
    size = 8 if kind == "map" else 32
    how = Preprocessing(resize=size, crop=size, interpolation="bilinear", mean=(0.5,) * 3, std=(0.5,) * 3)
    text = None
    if kind == "texts":
        tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
        reading = TextPreprocessing(tokenizer="t.json", longest=16, multiple_of=4, inputs=("ids", "mask"))
        digest = sha256(tokenizer)
        text = PreparedTexts(how=reading, tokenizer_sha256=digest, vocabulary=50, cut=0, together=1)
    manifest = Manifest(
        task=TASKS.get(kind, "regression"),
        source="x",
        inputs=tuple(samples) or (("ids", "mask") if text else ("input",)),
        preprocessing=how if kind in ("boxes", "map") else None,
        text=text,
        class_names=("a", "b", "c", "d") if kind == "boxes" else (),
        samples=tuple(Sample(name=f"{i}", sha256=f"{i:064x}", label=None) for i in range(3)),
        values=values,
    )
    build = build.model_copy(
        update={"profile": Profile(batch=BATCH, **PROFILES.get(kind, {})), "pixels": PIXELS.get(kind)}
    )
    if kind in PIXELS:
        onnx.save(take_pixels(onnx.load(path), how, PIXELS[kind]), path)
    machine, engine = describe_machine(runtime), tmp_path / "engine"
    more = {"boxes": BoxesParams(form="yolov8", score=0.3)} if kind == "boxes" else {"tokenizer": tokenizer}
    build_engine(DescribedGraph(precision, path, manifest, **more), target_of(machine, build.tensorrt), build, engine)
    root = make_project(tmp_path / "project", engine, path, machine)
    folder = root / "artifacts/samples/validation"
    folder.mkdir(parents=True)
    for index, array in enumerate(samples.values()):
        np.save(folder / input_file(index), array)
    manifest.write(folder / MANIFEST)
    done = enginewright("bundle", precision, "--out", "bundle", cwd=root)
    assert (done.returncode, done.stderr) == (0, "")
    return root / "bundle", engine


def site_of(kind, runtime, folder):
    """Return a folder that has NumPy and the runtime, and what reads images or texts where the example reads them."""
    folder.mkdir()
    packages = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs", *SITE[runtime], *READERS.get(kind, ())):
        if (packages / name).exists():
            (folder / name).symlink_to(packages / name)
    return {"PYTHONPATH": str(folder), "PATH": os.environ["PATH"]}


def ran(*command, **how):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **how)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, done.stderr


def infer(bundle, environment, *given):
    return ran(sys.executable, "-S", "-s", "infer.py", *given, cwd=bundle, env=environment)


def answers_of(bundle, engine, inference, given):
    """Return what the engine answers for what infer.py feeds. Write that for the example in C++, too."""
    code = f"import infer, numpy; fed = infer.feeds(*{given}); infer.write('../inputs.bin', *{given}); "
    code += "numpy.savez('../fed.npz', *(fed[n] for n in infer.INPUTS))"
    ran(warm_python() / "python3", "-c", code, cwd=bundle, env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    with np.load(bundle.parent / "fed.npz") as fed, open_engine(engine, None, inference) as opened:
        return opened.run({spec.name: fed[f"arr_{index}"] for index, spec in enumerate(opened.inputs)})


def require_said(text, answers):
    """Compare the lines of an example for arrays."""
    lines = [line.split("\t") for line in text.splitlines()]
    printed = [line for line in lines if len(line) == 3]
    assert {name: (sizes, [float(one) for one in values.split()]) for name, sizes, values in printed} == {
        name: ("x".join(map(str, values.shape)), pytest.approx(values.ravel()[:16].tolist(), rel=1e-4, abs=1e-5))
        for name, values in answers.items()
    }
    return [line for line in lines if len(line) == 2]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_the_example_answers_as_the_engine(kind, runtime, build, inference, tmp_path, request):
    bundle, engine = made(kind, runtime, build, tmp_path, request)
    environment = site_of(kind, runtime, tmp_path / "site")
    image = tmp_path / "cells.png"
    Image.fromarray(np.random.default_rng(2).integers(0, 256, (40, 50, 3), np.uint8)).save(image)
    given = {"texts": ["word3 word4", "word1 word7"], "boxes": [image]}.get(kind, ["example.npz"])
    together = list(map(str, given * 2 if kind == "boxes" else given))  # two are the smallest batch
    answers = answers_of(bundle, engine, inference, together)
    said, warned = infer(bundle, environment, *([] if kind in ARRAYS else given))
    assert warned == ""
    if kind in ARRAYS:
        off = require_said(said, answers)
        assert [name for name, _ in off] == list(answers)
        assert all(float(text.split()[-1]) < 1e-5 for _, text in off)
    elif kind == "texts":
        assert [json.loads(line)["vector"] for line in said.splitlines()] == answers["vector"].tolist()
    else:
        scores = sorted((float(line.split("\t")[2]) for line in said.splitlines()), reverse=True)
        best = answers["table"][0, 4:].max()
        assert scores[0] == pytest.approx(best, abs=1e-4)
    require_cpp(kind, runtime, bundle, said, answers, tmp_path, request)
    if kind in PIXELS:
        assert "data_type: TYPE_UINT8" in (bundle / "triton/resnet18-fp32/config.pbtxt").read_text()
        assert {"openvino": "-ip u8", "onnxruntime": "np.uint8"}[runtime] in (bundle / "reproduce.sh").read_text()
    verified, _ = ran(sys.executable, "-S", "verify.py", cwd=bundle)
    assert verified == "all files are as they were made\n"


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    """A folder from which the compiler takes OpenVINO's headers in its own form: reading them is most of its work."""
    folder = tmp_path_factory.mktemp("headers")
    (folder / "openvino").mkdir()
    (folder / "all.hpp").write_text("#include <openvino/openvino.hpp>\n")
    made = "-x", "c++-header", "-o", folder / "openvino/openvino.hpp.gch"
    ran("g++", *FLAGS, "-isystem", PACKAGE / "include", *made, folder / "all.hpp")
    return folder


def compiled(bundle, program, headers):
    """Compile the example for OpenVINO against what its Python package has."""
    (library,) = (PACKAGE / "libs").glob("libopenvino.so.*")
    linked = [library, f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
    read = "-Winvalid-pch", "-isystem", headers, "-isystem", PACKAGE / "include"
    ran("g++", *FLAGS, *read, "-o", program, bundle / "cpp/main.cpp", *linked)
    return program


def require_cpp(kind, runtime, bundle, said, answers, folder, request):
    """Compile the example, and run it for OpenVINO, which has its headers. ONNX Runtime's package has none."""
    if not shutil.which("g++"):
        return
    if runtime == "onnxruntime":
        ran("g++", *FLAGS, "-fsyntax-only", "-I", ROOT / "tests/headers", bundle / "cpp/main.cpp")
        return
    program = compiled(bundle, folder / "program", request.getfixturevalue("headers"))
    told, _ = ran(program, bundle / "engine/engine.blob", bundle.parent / "inputs.bin")
    if kind in ARRAYS:
        require_said(told, answers)
    elif kind == "texts":
        assert [[float(one) for one in line.split()] for line in told.splitlines()] == answers["vector"].tolist()
    else:
        first = [line for line in told.splitlines() if line.startswith("0\t")]
        assert scores_in("\n".join(first)) == pytest.approx(scores_in(said), abs=1e-4)


def scores_in(text):
    return [float(line.split("\t")[2]) for line in text.splitlines()]


def on_another_cpu(bundle, runtime):
    """Change what the example takes the engine to be for. This is where a real one would differ."""
    (target,) = json.loads((bundle / "engine/engine.json").read_text())["target"]["capabilities"]
    for name in ("runtime.py", "cpp/main.cpp"):
        text = (bundle / name).read_text()
        assert f'"{target}"' in text
        (bundle / name).write_text(text.replace(f'"{target}"', '"avx2 of_others"'))
    return target


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_on_another_cpu_the_graph_is_compiled_and_that_is_said(runtime, build, inference, tmp_path, request):
    bundle, engine = made("audio", runtime, build, tmp_path, request)
    graph = "triton/resnet18-fp32/1/model.xml" if runtime == "openvino" else "model.onnx"
    readme = (bundle / "README.md").read_text()
    assert f"`infer.py` compiles `{graph}` in the place of the engine, and says so." in readme
    here = on_another_cpu(bundle, runtime)
    answers = answers_of(bundle, engine, inference, ["example.npz"])
    said, warned = infer(bundle, site_of("audio", runtime, tmp_path / "site"))
    why = f"the engine is for a CPU with avx2 of_others, and this one has {here}"
    assert warned == f"{why}: {Path(graph).name} is compiled here, and speed and answers may be others\n"
    require_said(said, answers)
    (bundle / graph).write_text("no graph")
    done = subprocess.run([sys.executable, "infer.py"], cwd=bundle, capture_output=True, text=True)
    assert done.returncode == 1
    cure = "make a bundle here by `dvc repro` and `enginewright bundle fp32`"
    assert f"{Path(graph).name} cannot be compiled here either, {cure}: " in done.stderr


@pytest.mark.parametrize("runtime", ["openvino", "onnxruntime"])
def test_a_cpu_that_adds_in_16_bits_refuses_int8_for_others(runtime, build, inference, tmp_path, request):
    """benchmarks/measuring/other_cpus.py shows on emulated CPUs that answers would be wrong."""
    bundle, _ = made("audio", runtime, build, tmp_path, request, "int8")
    (target,) = json.loads((bundle / "engine/engine.json").read_text())["target"]["capabilities"]
    if ADDS_EXACTLY.isdisjoint(target.split()):
        pytest.skip("this CPU adds in 16 bits, so that its int8 is right everywhere")
    told = tmp_path / "cpuinfo"
    for name in ("runtime.py", "cpp/main.cpp"):
        text = (bundle / name).read_text()
        assert '"/proc/cpuinfo"' in text
        (bundle / name).write_text(text.replace("/proc/cpuinfo", str(told)))
    told.write_text("flags : sse4_2 avx2")
    done = subprocess.run([sys.executable, "infer.py"], cwd=bundle, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"the engine is for a CPU with {target}, and this one has avx2. It adds products of bytes in 16 bits, in which "
        "those of this graph overflow; make a bundle here by `dvc repro` and `enginewright bundle int8`\n",
    )
    readme = (bundle / "README.md").read_text()
    assert "It refuses one with none of amx_int8, asimd, avx512_vnni, avx_vnni, where products of bytes" in readme
    if runtime == "openvino" and shutil.which("g++"):
        program = compiled(bundle, tmp_path / "program", request.getfixturevalue("headers"))
        ran(sys.executable, "-B", "-c", "import infer; infer.write('../inputs.bin', 'example.npz')", cwd=bundle)
        given = [bundle / "triton/resnet18-int8/1/model.xml", bundle.parent / "inputs.bin"]
        done = subprocess.run([program, *given], capture_output=True, text=True)
        assert done.returncode == 1
        assert "without which products of bytes overflow: make a bundle here" in done.stderr
    told.write_text("flags : avx2 avx_vnni")
    _, warned = ran(sys.executable, "infer.py", cwd=bundle)
    assert "and this one has avx2 avx_vnni: model." in warned


def test_what_openvino_does_not_take_is_compiled_from_the_graph(build, inference, tmp_path, request):
    """As after an update of OpenVINO, which takes blobs of its own version alone."""
    bundle, engine = made("sized", "openvino", build, tmp_path, request)  # has no model.xml for Triton
    answers = answers_of(bundle, engine, inference, ["example.npz"])
    (bundle / "engine/engine.blob").write_bytes(b"of another version")
    record = json.loads((bundle / "engine/engine.json").read_text())
    record["files"]["engine.blob"] = sha256(bundle / "engine/engine.blob")
    (bundle / "engine/engine.json").write_text(json.dumps(record))
    said, warned = infer(bundle, site_of("sized", "openvino", tmp_path / "site"))
    require_said(said, answers)
    assert "does not take the engine, which is of " in warned
    assert "model.onnx is compiled here" in warned


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_in_cpp_another_cpu_needs_the_graph(build, inference, tmp_path, request, headers):
    bundle, engine = made("rows", "openvino", build, tmp_path, request)
    on_another_cpu(bundle, "openvino")
    answers = answers_of(bundle, engine, inference, ["example.npz"])
    program = compiled(bundle, tmp_path / "program", headers)
    inputs, graph = bundle.parent / "inputs.bin", "triton/resnet18-fp32/1/model.xml"
    done = subprocess.run([program, bundle / "engine/engine.blob", inputs], capture_output=True, text=True)
    assert done.returncode == 1
    assert f"for which the engine is: give ../{graph} in its place" in done.stderr
    require_said(ran(program, bundle / graph, inputs)[0], answers)
