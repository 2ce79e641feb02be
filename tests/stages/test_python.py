"""A stage that a Python without Enginewright's packages starts goes on in the project's own, or says what to do."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

ADVICE = "Enginewright's packages are not in this Python: run `make repro`, or `source .venv/bin/activate` first\n"
GATE = ("-m", "stages", "gate", "--verdict", "verdict.json", "--summary", "summary.md")


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A Python without packages."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python3"


@pytest.fixture
def project(tmp_path):
    """A project whose gate is open, without an environment."""
    for package in ("enginewright", "stages"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "verdict.json").write_text('{"recommended": "fp32", "failures": {"fp32": []}, "unsure": {}}')
    return tmp_path


def add_environment(project, packages):
    """Make .venv, with Enginewright's packages or without any."""
    (project / ".venv").mkdir()
    for name in ("bin", "lib", "pyvenv.cfg"):
        (project / ".venv" / name).symlink_to(packages / name)


def run(project, *command):
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60)


def test_a_python_without_the_packages_says_what_to_do(project, bare):
    done = run(project, bare, *GATE)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", ADVICE)


def test_a_python_without_the_packages_goes_on_in_the_projects_own(project, bare):
    add_environment(project, Path(sys.prefix))
    done = run(project, bare, *GATE)
    assert (done.returncode, done.stdout, done.stderr) == (0, "within their thresholds: fp32\n", "")


def test_a_project_whose_own_python_lacks_the_packages_says_so_once(project, bare):
    add_environment(project, bare.parents[1])
    for python in (bare, project / ".venv/bin/python"):
        done = run(project, python, *GATE)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", ADVICE)


def test_the_projects_dvc_runs_stages_without_the_environment_on_the_path(project):
    add_environment(project, Path(sys.prefix))
    (project / "dvc.yaml").write_text(f"stages: {{gate: {{cmd: python3 {' '.join(GATE)}}}}}")
    assert run(project, ".venv/bin/dvc", "init", "--no-scm").returncode == 0
    done = run(project, ".venv/bin/dvc", "repro")
    assert done.returncode == 0, done.stderr
    assert "within their thresholds: fp32" in done.stdout
