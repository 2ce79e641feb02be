"""What is released: archives as a package index takes them, and a wheel that has all that a project needs."""

import os
import re
import subprocess
import sys

import pytest
from support.paths import ROOT
from support.release import OTHER_PACKAGES, build_archives, done

from enginewright import __version__


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """The source archive, and the wheel that is made of it."""
    return build_archives(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def empty(archives, tmp_path_factory):
    """An environment with the wheel, and nothing else."""
    folder = tmp_path_factory.mktemp("empty")
    uv = (sys.executable, "-m", "uv", "--offline", "--quiet")
    done(*uv, "venv", "--python", sys.executable, folder / "venv", folder=folder)
    wheel = next(archives.glob("*.whl"))
    done(*uv, "pip", "install", "--python", folder / "venv/bin/python", "--no-deps", wheel, folder=folder)
    return folder / "venv/bin"


def test_the_archives_are_what_a_package_index_takes(archives):
    assert sorted(path.name for path in archives.iterdir()) == [
        f"enginewright-{__version__}-py3-none-any.whl", f"enginewright-{__version__}.tar.gz",
    ]  # fmt: skip
    checked = done(
        sys.executable, "-m", "twine", "--no-color", "check", "--strict", *archives.iterdir(), folder=archives
    )
    assert checked.count("PASSED") == 2


def test_the_command_starts_where_nothing_else_is_installed(empty, tmp_path):
    assert done(empty / "enginewright", "--version", folder=tmp_path) == f"enginewright {__version__}\n"
    assert "130  interrupted" in done(empty / "enginewright", "--help", folder=tmp_path)
    assert "build" in done(empty / "python", "-c", "import enginewright; print(*enginewright.__all__)", folder=tmp_path)


def test_a_project_of_the_wheel_finds_its_stages_and_their_code(empty, tmp_path):
    """The other packages are those of this environment."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    done(empty / "enginewright", "new", folder=tmp_path, **OTHER_PACKAGES)
    for name in ("dvc.yaml", "machine/dvc.yaml"):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
    assert "--verdict" in done(empty / "python", "-m", "stages", "gate", "--help", folder=tmp_path, **OTHER_PACKAGES)
    program = "import enginewright.pipeline.dependencies as code; print(code.ROOT, *code.code_of_stages((), {}, {}))"
    found = done(empty / "python", "-c", program, folder=tmp_path, **OTHER_PACKAGES).split()
    assert found[0].startswith(os.fspath(empty.parent))
    assert "calibrate" in found
    assert "is of enginewright" in done(empty / "enginewright", "upgrade", folder=tmp_path, **OTHER_PACKAGES)


def test_changes_are_written_down_and_only_what_was_asked_for_is_released(tmp_path):
    assert re.search(rf"^## {re.escape(__version__)} \(\d{{4}}-\d\d-\d\d\)$", (ROOT / "CHANGELOG.md").read_text(), re.M)
    for version, status in ((__version__, 0), ("9.0.0", 1)):
        checked = subprocess.run(["bash", ".ci/check-version", version], cwd=ROOT, capture_output=True, text=True)
        assert (checked.returncode, bool(checked.stderr)) == (status, bool(status))
