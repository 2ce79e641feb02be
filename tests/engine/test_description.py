import json
import platform
import shutil
import subprocess
import sys

import pytest
from support.command import ROOT, enginewright

from enginewright.core.files import sha256
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.description import describe_engine
from enginewright.engine.machine import target_of
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import describe_machine

RTX_HAS_A_WHEEL = (platform.system(), platform.machine()) == ("Linux", "x86_64")


@pytest.fixture(scope="module")
def openvino(tiny_onnx, machine, build, manifest, tmp_path_factory):
    folder = tmp_path_factory.mktemp("engines") / "fp32"
    build_engine(DescribedGraph("fp32", tiny_onnx, manifest), target_of(machine, build.tensorrt), build, folder)
    return folder


@pytest.fixture(scope="module")
def rtx(tiny_onnx, build, manifest, tmp_path_factory):
    if not RTX_HAS_A_WHEEL:
        pytest.skip("there is no wheel of TensorRT for RTX but for Linux on x86_64")
    folder = tmp_path_factory.mktemp("engines") / "fp32"
    build_engine(
        DescribedGraph("fp32", tiny_onnx, manifest),
        target_of(describe_machine("tensorrt_rtx"), build.tensorrt),
        build,
        folder,
    )
    return folder


def facts(folder):
    """Return the lines before the table of layers, as values by name."""
    lines = describe_engine(folder).split("\n\n")[0].splitlines()
    return {name: value.strip() for name, value in (line.split("  ", 1) for line in lines)}


def test_an_engine_is_described_by_what_matters(openvino, tiny_onnx, machine):
    record = EngineRecord.read(openvino / "engine.json")
    found = facts(openvino)
    assert found["precision"] == "fp32"
    assert found["compiled by"].startswith(f"openvino {machine.runtime_version}, in ")
    assert found["runs on"] == f"{machine.device_name}, {machine.cores} cores, {machine.operating_system}"
    assert found["files"] == f"engine.blob (sha256 {sha256(openvino / 'engine.blob')[:12]}, whole)"
    assert found["size"] == f"{record.bytes / 1e3:.1f} kB, of {tiny_onnx.stat().st_size / 1e3:.1f} kB of ONNX"
    assert found["ONNX"] == f"sha256 {sha256(tiny_onnx)[:12]}"
    assert found["batch sizes"] == "2 to 8, tuned for 4"
    assert found["compute layers"] == "3 fp32"
    assert found["input input"] == "float32, 2 to 8 x 3 x 8 x 8"
    assert found["output logits"] == "float32, 2 to 8 x 16"
    assert found["classes"] == "16"


def test_the_values_stand_in_one_column(openvino):
    lines = describe_engine(openvino).split("\n\n")[0].splitlines()
    width = max(map(len, facts(openvino)))
    assert all(line[width : width + 2] == "  " and line[width + 2] != " " for line in lines)


def test_every_layer_is_listed_with_its_precision(openvino):
    record = EngineRecord.read(openvino / "engine.json")
    header, *rows = describe_engine(openvino).split("\n\n")[1].splitlines()
    assert header.split() == ["precision", "layer", "of"]
    assert [row.split()[:2] for row in rows] == [[layer.precision, layer.kind] for layer in record.layers]
    assert any(" fused" in row for row in rows)
    assert max(map(len, rows)) < 80


def test_an_engine_for_gpus_is_described_where_there_is_none(rtx):
    found = facts(rtx)
    assert found["compiled by"].startswith("tensorrt_rtx 1.")
    assert found["runs on"] == f"any NVIDIA GPU, compute capability 8.6, 8.9 or 12.0, Linux {platform.machine()}"
    assert found["files"] == f"engine.plan (sha256 {sha256(rtx / 'engine.plan')[:12]}, whole)"
    assert found["TF32"] == "allowed"
    assert found["compute layers"] == "not known: built where it cannot run"
    assert found["input input"] == "float32, 2 to 8 x 3 x 8 x 8"
    assert "\n\n" not in describe_engine(rtx)


def test_the_command_prints_the_description(openvino):
    done = enginewright("inspect", openvino)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == describe_engine(openvino) + "\n"


def test_inspecting_loads_no_runtime_and_no_torch(openvino):
    program = f"""
import sys
from pathlib import Path
from enginewright.engine.description import describe_engine
describe_engine(Path({str(openvino)!r}))
print(*(name for name in ("torch", "openvino", "tensorrt", "tensorrt_rtx", "modelopt") if name in sys.modules))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def damage(folder):
    blob = folder / "engine.blob"
    blob.write_bytes(blob.read_bytes()[:-1])
    return folder


def without_blob(folder):
    (folder / "engine.blob").unlink()
    return folder


def without_record(folder):
    (folder / "engine.json").unlink()
    return folder


def of_another_version(folder):
    record = json.loads((folder / "engine.json").read_text())
    del record["target"]
    (folder / "engine.json").write_text(json.dumps(record))
    return folder


def of_bytes(folder):
    (folder / "engine.json").write_bytes(b"\xff\xfe\x00")
    return folder


@pytest.mark.parametrize(
    ("mistake", "wanted"),
    [
        (damage, "engine.blob is damaged: its hash differs from the one in engine.json. Run `dvc repro`"),
        (without_blob, "engine.blob is missing. Run `dvc repro`"),
        (without_record, "engine is not an engine's folder"),
        (of_another_version, "engine.json is damaged or of another version of Enginewright (target"),
        (of_bytes, "engine.json is damaged or of another version of Enginewright (Invalid"),
        (lambda folder: folder / "engine.blob", "engine.blob is not an engine's folder"),
        (lambda folder: folder / "engine.json", "engine.json is not an engine's folder"),
        (lambda folder: folder / "nothing", "there is no engine /"),
    ],
    ids=["damaged", "no blob", "no record", "another version", "bytes", "a blob", "a record", "nothing"],
)
def test_a_damaged_or_missing_engine_is_one_sentence(openvino, tmp_path, mistake, wanted):
    done = enginewright("inspect", mistake(shutil.copytree(openvino, tmp_path / "engine")))
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("enginewright: ")
    assert wanted in line


def test_a_bundle_in_place_of_an_engine_is_named(openvino, tmp_path):
    shutil.copytree(openvino, tmp_path / "bundle/engine")
    done = enginewright("inspect", tmp_path / "bundle")
    assert (done.returncode, done.stdout) == (1, "")
    bundle = tmp_path / "bundle"
    assert done.stderr == f"enginewright: {bundle} is a bundle, whose engine is {bundle}/engine: give that folder\n"


def test_an_onnx_file_or_a_plan_in_place_of_a_folder_is_one_sentence(tiny_onnx, rtx):
    for path in (tiny_onnx, rtx / "engine.plan"):
        done = enginewright("inspect", path)
        assert (done.returncode, done.stdout) == (1, "")
        wanted = f"{path} is not an engine's folder: `dvc repro` makes one per precision, in artifacts/engines"
        assert done.stderr == f"enginewright: {wanted}\n"
