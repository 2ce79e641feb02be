"""The door for other programs, `enginewright.open_engine`, as docs/reference/python.md shows it."""

import re
import shutil
import subprocess
import sys
from typing import get_type_hints

import pytest
from support.paths import ROOT

import enginewright
from enginewright.engine.engine import Engine
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import load_runtime
from enginewright.graph.as_written import open_as_written

DOCUMENTED, *_ = re.findall(r"```python\n(.*?)```", (ROOT / "docs/reference/python.md").read_text(), re.DOTALL)
LIBRARIES = {"numpy", "pandas", "pydantic", "torch"}


@pytest.fixture
def copy(built, tmp_path):
    return shutil.copytree(built, tmp_path / "artifacts/engines/int8")


@pytest.mark.parametrize(
    ("program", "printed"),
    [("import enginewright", "[]\n"), (DOCUMENTED, "logits (4, 16)\n['numpy', 'pydantic']\n")],
    ids=["import", "the program of docs/reference/python.md"],
)
def test_a_program_loads_only_the_libraries_it_needs(copy, tmp_path, program, printed):
    listing = f"import sys; print(sorted({LIBRARIES} & sys.modules.keys()))"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{program}\n{listing}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, printed, "")


@pytest.mark.parametrize("given", [str, lambda folder: folder], ids=["text", "path"])
def test_an_engine_is_opened_by_its_folder_and_computes_what_its_graph_means(built, tiny_onnx, samples, given):
    images = samples.cycled(5)
    (wanted,) = open_as_written(tiny_onnx).run(None, images)
    with enginewright.open_engine(given(built), threads=1) as engine:
        assert [spec.name for spec in (*engine.inputs, *engine.outputs)] == ["input", "logits"]
        assert engine.run(images)["logits"] == pytest.approx(wanted, abs=1e-4)


def damage(folder):
    (folder / "engine.blob").write_bytes(b"")
    return folder


def with_target(**changes):
    def change(folder):
        record = EngineRecord.read(folder / "engine.json")
        target = record.target.model_copy(update=changes)
        record.model_copy(update={"target": target}).write(folder / "engine.json")
        return folder

    return change


@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        (lambda folder: folder.with_name("int9"), r"there is no engine .*int9; did you mean .*int8\?"),
        (lambda folder: folder.parent, "engines is not an engine's folder"),
        (damage, "engine.blob is damaged: its hash differs from the one in engine.json. Run `dvc repro`"),
        (
            with_target(device_name="another processor"),
            "was built for another machine: device_name 'another processor' there",
        ),
        (with_target(runtime="tensorrt"), "int8 runs on tensorrt, but TensorRT is not installed: pip install"),
    ],
    ids=["no such folder", "another folder", "damaged", "another machine", "no runtime"],
)
def test_what_cannot_be_opened_is_a_sentence(copy, monkeypatch, mistake, sentence):
    monkeypatch.setattr(load_runtime("tensorrt"), "missing", lambda: "TensorRT is not installed: pip install it")
    with pytest.raises(enginewright.EnginewrightError, match=sentence):
        enginewright.open_engine(mistake(copy))


def test_the_door_is_typed():
    """With py.typed, type checkers read the types of an installed package as well."""
    assert get_type_hints(enginewright.open_engine, localns={"Engine": Engine})["return"] is Engine
    assert (ROOT / "enginewright/py.typed").exists()
