"""Several models in one project, as docs/how-to/models.md tells: they never meet in one cache entry."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
from support.checkout import Project, checkout, ran

# Two models that differ in their weights alone: whatever one of them left would fit the other.
CODE = """
import torch
from torch import nn


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))


def calm():
    return network(1)


def bold():
    return network(2)
"""
RECIPE = """
samples: {source: data/images/points.npz, preprocessing: null, validation: 48, calibration: 16, training: 0}
model: {source: "several:calm"}
weights: {source: given}
build: {profile: {batch: {min: 1, opt: 2, max: 4}}}
validation: {spot_samples: 4}
benchmark: {batches: [1], requests: [1], seconds: 0.1}
"""
THEIR_OWN = (
    "artifacts/weights/weights.pt",
    "artifacts/exported/model.onnx",
    "artifacts/simplified/model.onnx",
    "artifacts/reference",
    "artifacts/calibrated/calibration.cache",
    "artifacts/converted/int8/model.onnx",
    "artifacts/engines/int8/engine.json",
    "reports/validation/int8.json",
    "reports/benchmark/int8",
)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(checkout(tmp_path_factory.mktemp("project")))
    (project.root / "several.py").write_text(CODE)
    (project.root / "recipes").mkdir()
    (project.root / "recipes/calm.yaml").write_text(RECIPE)
    points = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    np.savez(project.root / "data/images/points.npz", points=points)
    project.set(**{f"precisions.{name}": None for name in ("fp32", "fp16", "bf16")})
    project.set(**{f"precisions.int8.thresholds.{limit}": 0 for limit in ("cosine", "agreement")})
    project.set(**{"precisions.int8.thresholds.relative_error": 10})
    project.set(**{"precisions.int8.from": "calibrated", "search": {}})  # which rescues and searches nothing
    for command in (
        ("git", "init", "--quiet"),
        ("git", "add", "."),
        ("git", "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "--quiet", "--message", "Begin"),
    ):
        assert project.run(*command).returncode == 0
    return project


def made(root: Path) -> dict[str, str]:
    """The hash of each file that belongs to a model."""
    found = {}
    for name in THEIR_OWN:
        path = root / name
        files = [path] if path.is_file() else sorted(path.iterdir())
        assert files, name
        found[name] = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return found


def by_recipe(project):
    """What `make repro RECIPE=recipes/calm.yaml` runs."""
    applied = project.run("python", "-m", "enginewright.pipeline", "recipes/calm.yaml")
    assert applied.returncode == 0, applied.stderr
    return project.repro()


def test_one_model_then_another_and_the_first_again(project):
    first = by_recipe(project)
    assert first.returncode == 0, first.stdout + first.stderr
    calm = made(project.root)

    second = project.run("dvc", "exp", "run", "-n", "bold", "-S", "model.source=several:bold")
    assert second.returncode == 0, second.stdout + second.stderr
    assert {"weights", "export", "calibrate", "build@int8", "benchmark@int8"} <= ran(second)
    bold = made(project.root)
    assert {name for name in calm if calm[name] == bold[name]} == set()

    again = by_recipe(project)
    assert again.returncode == 0, again.stdout + again.stderr
    assert ran(again) <= {"report", "gate"}  # the rest is restored from the run cache
    assert made(project.root) == calm
    shown = project.run("dvc", "params", "diff", "HEAD", "bold")
    assert "several:bold" in shown.stdout, shown.stderr
