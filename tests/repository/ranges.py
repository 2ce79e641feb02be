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
from support.release import LIGHT as LIGHT_EXTRAS
from support.release import build_archives, require_wheels
from support.sshd import Server, require_sshd
from support.wrong_compiler import wrong_python

from enginewright.precision.cure import Cure

RESOLUTION = os.environ.get("RESOLUTION", "highest")
OF_TESTS = ("pytest==9.2.0", "cyclonedx-python-lib[json-validation]>=8,<12")
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


def test_there_are_wheels_for_each_python_and_processor():
    resolved = [("3.10", LIGHT_EXTRAS), ("3.14", LIGHT_EXTRAS), ("3.11", ("pipeline",)), ("3.14", ("pipeline",))]
    require_wheels((*each, machine) for each in resolved for machine in ("x86_64", "aarch64"))


def ours(*extras):
    return ["-r", "pyproject.toml", *(word for extra in extras for word in ("--extra", extra)), *OF_TESTS]


@pytest.mark.parametrize("python", [OLDEST, LATER])
def test_the_light_part(python):
    wheels = "--only-binary", ":all:"  # else it compiles versions that are older than this Python
    with programs(python, *wheels, *ours(*LIGHT_EXTRAS)) as folder:
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


BEST = {"from": "mixed", "thresholds": {"cosine": 0, "agreement": 0, "relative_error": 10, "metric_drop": 1}}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A small project with a mix, and a server that is its target `board`."""
    require_sshd()
    project, server = Project(checkout(tmp_path / "project")), Server(tmp_path / "server")
    project.make_small()
    project.set(**{"mix.best": {"floating": "fp32"}, "precisions.best": BEST})
    project.run("git", "init")
    monkeypatch.setenv("PATH", f"{server.folder}/bin{os.pathsep}{os.environ['PATH']}")
    project.environment["XDG_CACHE_HOME"] = str(tmp_path / "cache")
    yield project, server
    server.stop()


def asked(project, python):
    """Commit what there is, and return the answer of a target with this Python. What a race of a small network says
    there is of no interest: the mix may win, or be int8 or fp32."""
    (project.root / "fleet.yaml").write_text(f"targets: {{board: {{ssh: board, python: {python}}}}}")
    for words in (["add", "--all"], ["commit", "-m", "a project"]):
        project.run("git", "-c", "user.name=a", "-c", "user.email=a@b", *words)
    done = project.run(sys.executable, "-m", "enginewright.cli", "fleet", "--json")  # uv execs
    assert done.returncode == 0, done.stderr
    ((answer,),) = json.loads(done.stdout).values()
    verdicts = {one["precision"]: one["verdict"] for one in answer["precisions"]}
    assert verdicts.pop("best") in ("passed", "is int8", "is fp32")
    came = project.root / "artifacts/fleet/board"
    assert sorted(path.name for path in (came / "engines").iterdir()) == ["best", "fp32", "int8"]
    assert (came / "reports/report.html").is_file()
    return answer["machine"]["runtime"], verdicts


def test_a_target_over_ssh_gets_all_but_its_runtime(project):
    """Its Python has OpenVINO alone."""
    project, _ = project
    with programs(OLDEST, "openvino>=2026.3,<2027") as folder:
        assert asked(project, folder / "python") == ("openvino", {"fp32": "passed", "int8": "passed"})
    assert not (project.root / "artifacts/engines").exists(), "nothing was built here"


def test_a_cure_that_is_found_on_a_target_comes_back_and_is_followed_there(project):
    """Its Python has ONNX Runtime, which is wrong about a convolution in int8."""
    project, server = project
    project.set(**{"precisions.int8.cure": True, "precisions.int8.thresholds.relative_error": 0.15})
    with programs(OLDEST, "onnxruntime>=1.23,<2", OF_TESTS[0]) as folder:
        python = wrong_python(folder / "python", server.home, "node_conv2d_2")
        assert asked(project, python) == ("onnxruntime", {"fp32": "passed", "int8": "failed"})
        assert Cure.read(project.root / "cures/board.int8.json").change.nodes == ("node_conv2d_2",)
        assert asked(project, python) == ("onnxruntime", {"fp32": "passed", "int8": "passed"})


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
