"""The lock agrees with the ranges of pyproject.toml, so that what is installed was tested. Ranges can be met."""

import importlib.metadata
import re
import sys
from functools import cache

import pytest
import tomllib
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.paths import ROOT
from support.release import LIGHT, require_wheels

from enginewright.pipeline.dependencies import executed, imports_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
OF_PIPELINE = ("pipeline", "device", "images", "openvino", "onnxruntime")  # the first contains the others
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
def test_every_requirement_has_a_lowest_version(line):
    assert {clause.operator for clause in Requirement(line).specifier} & {">=", "=="}


@pytest.mark.parametrize("line", INSTALLED)
def test_the_lock_is_within_the_ranges(line):
    requirement = Requirement(line)
    if not requirement.marker or requirement.marker.evaluate({"python_version": "3.11"}):
        versions = locked()[canonicalize_name(requirement.name)]
        assert versions == set(requirement.specifier.filter(versions))


def test_there_are_wheels_for_the_oldest_python_and_for_the_newest():
    """tests/repository/ranges.py resolves each extra for each Python and processor, and waits longer for the index."""
    require_wheels([("3.10", LIGHT, "aarch64"), ("3.14", ("pipeline",), "x86_64")])


def test_what_is_imported_is_declared():
    """Each package that the code imports, by itself or by a part of it that has its name."""
    distributions = importlib.metadata.packages_distributions()
    declared = {canonicalize_name(Requirement(line).name) for line in ALL}
    trees = (executed(path.read_text()) for name in ("enginewright", "stages") for path in (ROOT / name).rglob("*.py"))
    roots = {name.partition(".")[0] for tree in trees for name in imports_of(tree)}
    ours, others = (
        {"enginewright", "tools"},
        {"pydantic_core", "tensorrt", "torch_tensorrt"},
    )  # others bring them
    for root in roots - sys.stdlib_module_names - ours - others:
        assert {canonicalize_name(name) for name in distributions.get(root, [root])} & declared, root


def test_every_locked_package_has_its_version_and_hashes():
    entries = re.split(r"(?m)^(?=\S)", LOCK)[1:]
    assert len(entries) > 100
    for entry in entries:
        assert re.match(r"[A-Za-z0-9._-]+(\[[^]]*])?==[^ ]+", entry), entry
        assert "--hash=sha256:" in entry, entry


def test_the_pipeline_brings_the_runtimes_that_it_builds_with():
    assert (EXTRAS["pipeline"][0], EXTRAS["device"][0]) == (
        "enginewright[device,openvino]", "enginewright[images,onnxruntime]",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["pyproject.toml", "requirements.lock"])
def test_each_package_comes_from_the_index_that_pip_is_set_up_with(name):
    text = (ROOT / name).read_text()
    assert "://" not in text
    assert not re.search(r"(?m)^\s*(-i|-f|--index-url|--extra-index-url|--find-links)\b", text)


def test_what_runs_engines_is_small():
    """Counted as pip unpacks it, without what Python compiles later. NumPy has more than half of it."""
    wanted, counted = [Requirement(line) for line in PROJECT["project"]["dependencies"]], {}
    while wanted:
        one = wanted.pop()
        if (name := canonicalize_name(one.name)) in counted:
            continue
        installed = importlib.metadata.distribution(one.name)
        counted[name] = sum(file.size or 0 for file in installed.files or [] if file.suffix != ".pyc")
        lines = map(Requirement, installed.requires or [])
        wanted += [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    code = sum(path.stat().st_size for path in (ROOT / "enginewright").rglob("*") if path.suffix != ".pyc")
    assert {"numpy", "pydantic", "jinja2"} <= counted.keys()
    assert not {"pillow", "torch", "dvc", "pandas", "onnx", "cyclonedx-python-lib"} & counted.keys()
    assert sum(counted.values()) - counted["numpy"] + code < 15e6, counted
