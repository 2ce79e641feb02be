"""README and docs: what takes minutes, one block after another in a project with a small setting."""

import shutil
import sys
from pathlib import Path

import pytest
from documents import ROOT, blocks, lines_of
from ruamel.yaml import YAML
from test_documents import attempt, run
from test_pipeline import TINY, Project, checkout

CI = (ROOT / ".ci/run").read_text().splitlines()  # what it runs, this test among it, is run wherever this is
SMALL_RECIPE = {
    "samples": TINY["samples"] | {"preprocessing": {"resize": 64, "crop": 64}},
    "weights": {"training": {"size": 64}},
    "precisions": {"int8": {"must_pay": None}},
    "benchmark": TINY["benchmark"],
}


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """Reproduced once and committed, with this environment as the one that `make` made."""
    project = Project(checkout(tmp_path_factory.mktemp("project")))
    for name in ("recipes", "tests", "Makefile", "pyproject.toml", "requirements.lock"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, project.root / name)
    (project.root / ".venv").mkdir()
    (project.root / ".venv/bin").symlink_to(Path(sys.executable).parent)
    (project.root / ".venv/ready").touch()
    project.make_small()
    make_smaller(project.root / "recipes/resnet50.yaml")
    run(project.root, "git init -q && dvc repro && git add . && git commit -qm one")
    return project.root


def make_smaller(recipe):
    yaml = YAML()
    settings = yaml.load(recipe)
    lay_over(settings, SMALL_RECIPE)
    with recipe.open("w") as file:
        yaml.dump(settings, file)


def lay_over(settings, changes):
    for name, value in changes.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict):
            lay_over(settings[name], value)
        else:
            settings[name] = value


@pytest.mark.parametrize(
    "block", [block for block in blocks("sh", "console") if block.at_length], ids=lambda block: block.name
)
def test_what_takes_minutes_runs(block, project):
    for line in lines_of(block):
        if line.partition("#")[0].strip() not in CI:
            done = attempt(project, line)
            # Four steps of training leave an int8 that need not keep to a limit: then that is what it must say.
            assert done.returncode == 0 or "\ngate: int8: " in done.stderr, f"{line}\n{done.stdout}{done.stderr}"
