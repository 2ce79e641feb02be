"""The wheel has all that a project needs: the stages, and what `enginery new` lays out."""

import subprocess
import sys
import zipfile

import pytest
from support.paths import ROOT

COPIED = (
    "enginery", "stages", "machine", ".dvc/plots", "pyproject.toml", "README.md", "LICENSE", "dvc.yaml", "params.yaml",
    ".dvcignore",
)  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, unpacked, as pip would."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in COPIED:
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", ROOT / name, target], check=True)  # links stay links
    quiet = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "wheel", *quiet, "-w", folder, folder / "source"], check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder / "site")
    return folder / "site"


def run(installed, folder, *arguments):
    environment = {"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [sys.executable, "-P", "-m", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_project_of_the_wheel_finds_its_stages_and_their_code(installed, tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    laid_out = run(installed, tmp_path, "enginery.cli", "new")
    assert laid_out.returncode == 0, laid_out.stderr
    for name in ("dvc.yaml", "machine/dvc.yaml", "params.yaml"):
        assert (tmp_path / name).read_text() == (ROOT / name).read_text()
    shown = run(installed, tmp_path, "stages", "gate", "--help")
    assert "--verdict" in shown.stdout, shown.stderr
    program = "import enginery.pipeline.code as code; print(code.ROOT, *code.code_of_stages((), {}, {}))"
    found = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
    ).stdout.split()
    assert found[0] == str(installed)
    assert "calibrate" in found
