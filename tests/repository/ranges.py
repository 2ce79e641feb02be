"""With the lowest and with the newest versions that pyproject.toml allows: `make test-lowest` and `make test-newest`.

Each test installs what it needs into an environment of its own, from the index that uv is set up with: the pipeline
takes 6 GB while it runs."""

import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.checkout import Project, checkout
from support.paths import ROOT

RESOLUTION = os.environ.get("RESOLUTION", "highest")
OF_TESTS = ("pytest==9.2.0", "cyclonedx-python-lib[json-validation]")
OLDEST, LATER = "3.10", ">=3.13"
# Build, open, run, time and validate engines, and verify a bundle.
LIGHT = (
    "engine/test_engine.py", "engine/test_open_engine.py", "engine/test_record.py", "engine/runtimes/test_openvino.py",
    "measure/test_timing.py", "measure/test_validate.py", "bundle/test_verify.py",
)  # fmt: skip


@contextmanager
def programs(python, *extras):
    """Yield the folder of an environment's programs."""
    uv = (sys.executable, "-m", "uv", "--quiet", "--no-python-downloads")
    if subprocess.run([*uv, "python", "find", python], capture_output=True).returncode:
        pytest.skip(f"there is no Python {python}")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*uv, "venv", "--python", python, folder], check=True)
        wanted = [word for extra in extras for word in ("--extra", extra)]
        install = [*uv, "pip", "install", "--python", f"{folder}/bin/python", "--resolution", RESOLUTION]
        subprocess.run([*install, "-r", "pyproject.toml", *wanted, *OF_TESTS], cwd=ROOT, check=True)
        yield Path(folder, "bin")


@pytest.mark.parametrize("python", [OLDEST, LATER])
def test_the_light_part(python):
    with programs(python, "device", "openvino", "sign", "text") as folder:
        tests = [f"tests/{name}" for name in LIGHT]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        ran = subprocess.run([folder / "python", "-m", "pytest", "-x", *tests], cwd=ROOT, env=environment)
    assert ran.returncode == 0


def test_the_default_pipeline_made_small(tmp_path):
    project = Project(checkout(tmp_path / "project"))
    project.make_small()
    with programs(sys.executable, "pipeline") as folder:
        path = os.pathsep.join([str(folder), os.environ["PATH"]])
        environment = project.environment | {"PATH": path, "PYTHONPATH": str(project.root)}
        for command in (["git", "init", "--quiet"], ["dvc", "repro"]):
            subprocess.run(command, cwd=project.root, env=environment, check=True)
    assert (project.root / "reports/verdict.json").is_file()
