"""Engines of earlier commits, out of the cache of a real DVC project with a pipeline that writes a word."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from enginery.core.errors import EngineryError
from enginery.earlier_engines import engines_of, hashes_in

PIPELINE = """
stages:
  build:
    foreach: [fp32, int8]
    do:
      cmd: mkdir -p artifacts/engines/${item} && cp word artifacts/engines/${item}/engine.blob
      deps: [word]
      outs: ["artifacts/engines/${item}"]
"""


def call(project, *command):
    subprocess.run(command, cwd=project, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two commits: the engine of the first says old, that of the second says new."""
    project = tmp_path_factory.mktemp("project")
    call(project, "git", "init", "-q")
    call(project, "git", "config", "user.name", "a")
    call(project, "git", "config", "user.email", "a@b")
    call(project, sys.executable, "-m", "dvc", "init", "-q")
    (project / "dvc.yaml").write_text(PIPELINE)
    for word in ("old", "new"):
        (project / "word").write_text(word)
        call(project, sys.executable, "-m", "dvc", "repro", "-q")
        call(project, "git", "add", "-A")
        call(project, "git", "commit", "-q", "-m", word)
    (project / "reports").mkdir()
    return project


@pytest.fixture
def project(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def word(place, precision="int8"):
    with engines_of(place) as find:
        return (find(precision) / "engine.blob").read_text()


def test_an_earlier_commits_engine_comes_out_of_the_cache_and_the_present_one_lies_there(project):
    assert word("HEAD~1") == "old"
    assert word("HEAD") == "new"
    assert word("reports") == "new"


def test_what_came_out_of_the_cache_is_gone_afterwards_and_what_lies_in_the_project_stays(project):
    for place, stays in {"HEAD~1": False, "reports": True}.items():
        with engines_of(place) as find:
            folder = find("int8")
        assert folder.exists() == stays


def test_a_good_run_names_its_engines_by_their_hashes(project, tmp_path):
    good = tmp_path / "good.json"
    good.write_text("{}")
    with pytest.raises(EngineryError, match=r"good\.json has no good-engines\.json beside it"):
        word(str(good))
    hashes = hashes_in(
        subprocess.run(["git", "show", "HEAD~1:dvc.lock"], check=True, capture_output=True, text=True).stdout, "it"
    )
    (tmp_path / "good-engines.json").write_text(json.dumps(hashes))
    assert word(str(good), "fp32") == "old"
    (tmp_path / "good-engines.json").write_text("[]")
    with pytest.raises(EngineryError, match=r"good-engines\.json is damaged"):
        word(str(good))


@pytest.mark.parametrize(
    ("place", "precision", "why"),
    [
        ("HEAD~7", "int8", r"HEAD~7 has no dvc\.lock, which would say which engines are its own"),
        ("HEAD", "fp16", "HEAD has no engine of fp16"),
        ("reports", "fp16", "fp16 is missing: run `dvc checkout` or `dvc repro` in that project"),
    ],
)
def test_an_engine_that_is_not_there_is_one_sentence(project, place, precision, why):
    with pytest.raises(EngineryError, match=why):
        word(place, precision)


def test_an_engine_that_is_not_in_the_cache_is_one_sentence(project, tmp_path, monkeypatch):
    """As in a clone on another machine."""
    elsewhere = shutil.copytree(project, tmp_path / "clone")
    shutil.rmtree(elsewhere / ".dvc" / "cache")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(EngineryError, match=r"the engine of int8 that HEAD~1 had is not in DVC's cache here"):
        word("HEAD~1")


def test_outside_of_a_dvc_project_it_is_the_same_sentence(project, tmp_path, monkeypatch):
    good = tmp_path / "good.json"
    good.write_text("{}")
    Path(tmp_path / "good-engines.json").write_text('{"int8": "0123456789abcdef0123456789abcdef.dir"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EngineryError, match="is not in DVC's cache here"):
        word("good.json")


@pytest.mark.parametrize("lock", ["[", "a: 1", "stages: [build@int8]", "stages: {build@int8: {outs: []}}"])
def test_a_lock_that_is_none_is_one_sentence(lock):
    with pytest.raises(EngineryError, match="it is no lock file of DVC's"):
        hashes_in(lock, "it")
