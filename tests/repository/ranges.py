"""With the lowest and with the newest versions that pyproject.toml allows: `make test-lowest` and `make test-newest`.

Each test installs what it needs into an environment of its own, from the index that uv is set up with: the pipeline
takes 6 GB while it runs."""

import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from support.checkout import Project, checkout
from support.paths import ROOT
from support.release import build_archives
from support.sshd import Server, require_sshd

RESOLUTION = os.environ.get("RESOLUTION", "highest")
OF_TESTS = ("pytest==9.2.0", "cyclonedx-python-lib[json-validation]")
OLDEST, LATER = "3.10", ">=3.13"
OF_PIPELINE = (sys.executable, LATER) if RESOLUTION == "highest" else (sys.executable,)
# Build, open, run, time and validate engines, and verify a bundle.
LIGHT = (
    "engine/test_engine.py", "engine/test_open_engine.py", "engine/test_record.py", "engine/runtimes/test_openvino.py",
    "measure/test_timing.py", "measure/test_validate.py", "bundle/test_verify.py",
)  # fmt: skip


@contextmanager
def programs(python, *packages):
    """Yield the folder of an environment's programs."""
    uv = (sys.executable, "-m", "uv", "--quiet", "--no-python-downloads")
    if subprocess.run([*uv, "python", "find", python], capture_output=True).returncode:
        pytest.skip(f"uv finds no Python {python}")  # of pyenv's, those that PYENV_VERSION names
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*uv, "venv", "--python", python, folder], check=True)
        install = [*uv, "pip", "install", "--python", f"{folder}/bin/python", "--resolution", RESOLUTION]
        subprocess.run([*install, *packages], cwd=ROOT, check=True)
        yield Path(folder, "bin")


def ours(*extras):
    return ["-r", "pyproject.toml", *(word for extra in extras for word in ("--extra", extra)), *OF_TESTS]


@pytest.mark.parametrize("python", [OLDEST, LATER])
def test_the_light_part(python):
    with programs(python, *ours("device", "openvino", "sign", "text")) as folder:
        tests = [f"tests/{name}" for name in LIGHT]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run([folder / "python", "-m", "pytest", "-x", *tests], cwd=ROOT, env=environment)
    assert ran.returncode == 0


@pytest.mark.parametrize("python", OF_PIPELINE)
def test_the_default_pipeline_made_small(tmp_path, python):
    project = Project(checkout(tmp_path / "project"))
    project.make_small()
    with programs(python, *ours("pipeline")) as folder:
        path = os.pathsep.join([str(folder), os.environ["PATH"]])
        environment = project.environment | {"PATH": path, "PYTHONPATH": str(project.root)}
        for command in (["git", "init", "--quiet"], ["dvc", "repro"]):
            subprocess.run(command, cwd=project.root, env=environment, check=True)
    assert (project.root / "reports/verdict.json").is_file()


def test_a_target_over_ssh_gets_all_but_its_runtime(tmp_path, monkeypatch):
    """Its Python has OpenVINO alone. What a race of a small network says there is of no interest."""
    require_sshd()
    project, server = Project(checkout(tmp_path / "project")), Server(tmp_path / "server")
    project.make_small()
    monkeypatch.setenv("PATH", f"{server.folder}/bin{os.pathsep}{os.environ['PATH']}")
    project.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    try:
        with programs(OLDEST, "openvino>=2026.3,<2027") as folder:
            (project.root / "fleet.yaml").write_text(f"targets: {{board: {{ssh: board, python: {folder}/python}}}}")
            for words in (["init"], ["add", "--all"], ["commit", "-m", "a project"]):
                project.run("git", "-c", "user.name=a", "-c", "user.email=a@b", *words)
            asked = project.run(sys.executable, "-m", "enginewright.cli", "fleet", "--json")  # uv execs
    finally:
        server.stop()
    assert asked.returncode == 0, asked.stderr
    ((answer,),) = json.loads(asked.stdout).values()
    assert {one["precision"]: one["verdict"] for one in answer["precisions"]} == {"fp32": "passed", "int8": "passed"}
    assert answer["machine"]["runtime"] == "openvino"
    engines = project.root / "artifacts/fleet/board/engines"
    assert sorted(path.name for path in engines.iterdir()) == ["fp32", "int8"]
    assert (project.root / "artifacts/fleet/board/reports/report.html").is_file()


def test_the_written_workflow_runs_in_a_fresh_clone(tmp_path):
    """Each command of its job on a CPU, with nothing but what they install, as pip resolves it."""
    (wheel,) = build_archives(tmp_path).glob("*.whl")
    project, origin, clone = Project(tmp_path / "project"), tmp_path / "origin", tmp_path / "clone"
    project.root.mkdir()
    own = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    plain = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **own}
    settings = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}

    def run(*command, folder=project.root, **more):
        subprocess.run(command, cwd=folder, env=plain | more, check=True)

    run("git", "init", "--quiet")
    with programs(sys.executable, f"{wheel}[pipeline]") as folder:
        run(folder / "enginewright", "new", PATH=f"{folder}:/usr/bin:/bin")
    project.make_small()
    run("git", "add", "--all")
    run("git", "commit", "--quiet", "--message", "a project")
    run("git", "clone", "--quiet", "--bare", project.root, origin)
    run("git", "clone", "--quiet", origin, clone)
    run(sys.executable, "-m", "venv", tmp_path / "python")
    (workflow,) = (clone / ".github/workflows").iterdir()
    for step in YAML(typ="safe").load(workflow)["jobs"]["nightly"]["steps"]:
        if command := step.get("run"):
            run("bash", "-ec", command, folder=clone, PATH=f"{tmp_path}/python/bin:/usr/bin:/bin", **settings)
    night = subprocess.run(["git", "log", "--format=%s"], cwd=origin, capture_output=True, text=True)
    assert night.stdout.splitlines() == ["A night", "a project"]
