"""`enginewright doctor`: whether `dvc repro` can run, as a user asks it in a project and outside of one."""

import json
import os
import pty
import shutil
import subprocess
import sys

import pytest
from support.command import ROOT, enginewright

from enginewright.cli import machine_checks as diagnosis
from enginewright.cli.arguments import Check, State
from enginewright.cli.commands import doctor as doctor
from enginewright.core.params.all import Params
from enginewright.engine.runtimes import load_runtime

TOPICS = (
    "Python", "packages", "project", "git", "disk", "CPU", "GPU", "memory", "openvino", "onnxruntime", "tensorrt",
    "tensorrt_rtx", "params.yaml", "precisions",
)  # fmt: skip
WITHOUT_PACKAGES = """
import importlib.metadata, sys
found = importlib.metadata.version
def version(name):
    if name in ("onnx", "pydantic"):
        raise importlib.metadata.PackageNotFoundError(name)
    return found(name)
importlib.metadata.version = version
sys.modules.update(dict.fromkeys(("onnx", "pydantic", "numpy", "shtab", "jinja2")))
sys.argv = ["enginewright", "doctor"]
from enginewright.cli.main import main
main()
"""


@pytest.fixture
def project(tmp_path):
    """The files that DVC and Enginewright look for, in a git repository."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    (tmp_path / ".dvc").mkdir()
    subprocess.run(["git", "init", "-q", "-b", "work", tmp_path], check=True)
    return tmp_path


def findings(cwd, **more):
    done = enginewright("doctor", "--json", cwd=cwd, **more)
    document = json.loads(done.stdout)
    assert done.stderr == ""
    assert done.returncode == (0 if document["can_run"] else 1)
    return {finding["topic"]: finding for finding in document["findings"]}


def test_where_the_pipeline_runs_nothing_is_wrong(project):
    found = findings(project)
    assert tuple(found) == TOPICS
    assert not [finding for finding in found.values() if finding["state"] == "wrong"]
    assert found["Python"]["found"] == ".".join(map(str, sys.version_info[:3]))
    assert found["project"]["found"].startswith(f"{project}, DVC 3.")
    assert found["git"]["found"] == "work at no commit yet, 2 changed files"
    assert found["openvino"]["found"].startswith(f"{load_runtime('openvino').version()}, on the ")


def test_the_text_has_the_same_checks_and_a_verdict(project):
    done = enginewright("doctor", cwd=project)
    assert (done.returncode, done.stderr) == (0, "")
    rows = done.stdout.splitlines()
    assert [row.split()[1] for row in rows if row.startswith(("fine", "note"))] == list(TOPICS)
    assert rows[-1] == "`dvc repro` can run here."


def test_a_missing_runtime_comes_with_the_command_that_installs_it(project):
    if load_runtime("tensorrt").missing() is None:
        pytest.skip("TensorRT is installed here")
    found = findings(project)["tensorrt"]
    assert found["state"] == "note"
    assert found["found"] == "TensorRT is not installed"
    assert found["remedy"] == "pip install -e '.[tensorrt]'"


def test_a_mistake_in_params_is_found_before_dvc_runs(project):
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("runtime: auto", "runtime: openvnio"))
    found = findings(project)
    assert found["params.yaml"]["state"] == "wrong"
    assert "runtime" in found["params.yaml"]["found"]
    assert "precisions" not in found
    assert (
        enginewright("doctor", cwd=project).stdout.splitlines()[-1]
        == "`dvc repro` cannot run here: first fix params.yaml."
    )


def test_what_dvc_itself_reads_must_be_there(project):
    (project / "params.yaml").write_text("samples: {seed: 1}")
    found = findings(project)["params.yaml"]
    assert found["state"] == "wrong"
    assert found["found"] == "lacks in precisions and search what dvc.yaml itself reads there"
    assert "python -m enginewright.pipeline" in found["remedy"]


def test_a_runtime_that_cannot_be_used_is_wrong_only_if_it_is_asked_for(project):
    if load_runtime("tensorrt").missing() is None:
        pytest.skip("TensorRT is installed here")
    text = (project / "params.yaml").read_text()
    (project / "params.yaml").write_text(text.replace("runtime: auto", "runtime: tensorrt"))
    found = findings(project)["params.yaml"]
    assert found["state"] == "wrong"
    assert "TensorRT is not installed: pip install" in found["found"]


def test_outside_a_project_it_says_where_to_go(tmp_path):
    found = findings(tmp_path, GIT_CEILING_DIRECTORIES=str(tmp_path.parent))
    assert found["project"]["found"] == f"{tmp_path} has no dvc.yaml, params.yaml"
    assert found["params.yaml"]["remedy"] == "go to the root of the project"
    assert found["project"]["remedy"] == "go to a project, or make one here: enginewright new"
    assert found["git"]["state"] == "wrong"
    assert found["git"]["remedy"] == "clone the project, or: git init"


def test_without_git_it_says_so(project):
    found = findings(project, PATH=str(project))
    assert found["git"] == {
        "topic": "git",
        "state": "wrong",
        "found": "not installed, but DVC needs it",
        "remedy": "apt-get install git",
    }


def test_it_runs_where_the_packages_are_missing(project):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGES],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "missing: pydantic, onnx" in done.stdout
    assert f"-> {doctor.INSTALL}" in done.stdout
    assert done.stdout.splitlines()[-1] == "`dvc repro` cannot run here: first fix packages."


def test_other_versions_of_packages_are_a_note(monkeypatch):
    monkeypatch.setattr(doctor.importlib.metadata, "version", lambda name: "0.0.1")
    found = doctor.examine_packages()
    assert found.state is State.NOTE
    assert found.found.startswith("outside the versions that work: numpy 0.0.1, not ")


def test_a_full_disk_is_wrong(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda place: shutil._ntuple_diskusage(100, 99, 1.5e9))
    found = doctor.examine_disk()
    assert (found.state, found.found) == (State.WRONG, "1.5 GB free")


def test_a_project_that_cannot_be_written_to_is_wrong(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setattr(doctor.os, "access", lambda place, kind: kind != os.W_OK)
    found = doctor.examine_disk()
    assert (found.state, found.found) == (State.WRONG, f"{project} cannot be written to")


@pytest.mark.parametrize(("version", "state"), [((3, 10, 9), "wrong"), ((3, 11, 0), "fine"), ((3, 14, 0), "fine")])
def test_python_must_be_one_that_all_packages_support(monkeypatch, version, state):
    monkeypatch.setattr(doctor.sys, "version_info", version)
    assert doctor.examine_python().state == state


@pytest.mark.parametrize(("usable", "told"), [(8, ", 8 cores, "), (2, ", 2 of 8 cores by a CPU quota, ")])
def test_a_cpu_quota_is_shown(monkeypatch, usable, told):
    monkeypatch.setattr(diagnosis.os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(diagnosis, "usable_cores", lambda: usable)
    assert told in diagnosis.examine_cpu().found


def test_a_precision_that_is_not_executed_is_a_note(machine, build, monkeypatch):
    params = Params.read(ROOT / "params.yaml")
    executed = {"fp32": "tf32", "fp16": "fp32", "bf16": "bf16", "int8": "int8", "fp8": "not at all"}
    monkeypatch.setattr(diagnosis, "executed_as", lambda machine, build: executed)
    assert diagnosis.examine_precisions(params, machine) == Check(
        "precisions",
        State.NOTE,
        "openvino executes fp32, bf16, int8 natively; fp16 as fp32; fp8 not at all",
        "params.yaml lists fp16: to look at, not to ship from this machine",
    )
    executed["fp16"] = "fp16"
    assert diagnosis.examine_precisions(params, machine).state is State.FINE


def test_the_memory_limit_of_a_container_counts(tmp_path, monkeypatch):
    (tmp_path / "memory.max").write_text("1000000000\n")
    monkeypatch.setattr(diagnosis, "LIMITS", (tmp_path / "memory.max", tmp_path / "nothing"))
    assert diagnosis.examine_memory().found.startswith("1.0 GB, ")
    (tmp_path / "memory.max").write_text("max\n")
    assert not diagnosis.examine_memory().found.startswith("1.0 GB, ")


def test_on_a_terminal_lines_are_wrapped_and_commands_are_not():
    long = Check("CPU", State.FINE, "avx2 " * 40, "pip" + " install" * 40)
    first, *rest = enginewright_lines(long)
    assert first == "fine   CPU  " + "avx2 " * 16 + "avx2"
    assert all(line == " " * 12 + line.strip() for line in rest)
    assert rest[-1] == " " * 12 + "-> pip" + " install" * 40
    assert max(map(len, [first, *rest[:-1]])) <= 100


def enginewright_lines(finding):
    """Return the lines that a terminal of 100 columns without colours shows."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal, pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "100")
        patch.setenv("NO_COLOR", "1")
        shown = doctor.as_text([finding], terminal)
    os.close(ours)
    return shown.split("\n\n")[0].split("\n")
