"""Each version is pinned, and the lock agrees with pyproject.toml, so that what is installed was tested."""

import importlib.metadata
import re
import tomllib
from functools import cache

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
OF_PIPELINE = ("pipeline", "images", "openvino", "onnxruntime")  # the first contains the others
INSTALLED = PROJECT["project"]["dependencies"] + [
    line for extra in (*OF_PIPELINE, "dev") for line in EXTRAS[extra] if not line.startswith("enginewright[")
]
ALL = [
    *INSTALLED,
    *(line for extra in EXTRAS.values() for line in extra if "enginewright[" not in line),
    *PROJECT["build-system"]["requires"],
]
LOCK = (ROOT / "requirements.lock").read_text()


@cache
def locked():
    """Return the locked versions by name: one, or one for each platform."""
    versions = {}
    for name, version in re.findall(r"(?m)^([A-Za-z0-9._-]+)(?:\[[^]]*])?==([^ ;\\]+)", LOCK):
        versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


@pytest.mark.parametrize("line", sorted(set(ALL)))
def test_every_requirement_is_pinned_exactly(line):
    (clause,) = Requirement(line).specifier
    assert clause.operator == "=="
    assert "*" not in clause.version


@pytest.mark.parametrize("line", INSTALLED)
def test_the_lock_agrees_with_the_project(line):
    requirement = Requirement(line)
    (clause,) = requirement.specifier
    assert locked()[canonicalize_name(requirement.name)] == {clause.version}


def test_every_locked_package_has_its_version_and_hashes():
    entries = re.split(r"(?m)^(?=\S)", LOCK)[1:]
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[^]]*])?==[^ ]+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_the_pipeline_brings_the_runtimes_that_it_builds_with():
    assert EXTRAS["pipeline"][0] == f"enginewright[{','.join(OF_PIPELINE[1:])}]"


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock"])
def test_each_package_comes_from_the_index_that_pip_is_set_up_with(name):
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*(-i|-f|--index-url|--extra-index-url|--find-links)\b", text)


def test_what_runs_engines_is_small():
    """Counted as pip unpacks it, without what Python compiles later."""
    wanted = [Requirement("enginewright[openvino]")]
    counted = {}
    while wanted:
        one = wanted.pop()
        installed = importlib.metadata.distribution(one.name)
        if (name := canonicalize_name(one.name)) in counted and not one.extras:
            continue
        files = installed.files or []
        counted[name] = sum(file.size or 0 for file in files if file.suffix != ".pyc")
        for line in map(Requirement, installed.requires or []):
            if line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in (*one.extras, "")):
                wanted.append(line)
    code = sum(path.stat().st_size for path in (ROOT / "enginewright").rglob("*") if path.suffix != ".pyc")
    assert {"openvino", "numpy", "pydantic", "jinja2"} <= counted.keys()
    assert not {"pillow", "torch", "dvc"} & counted.keys()
    assert sum(counted.values()) + code < 250 * 2**20
