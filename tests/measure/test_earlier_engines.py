"""Engines of earlier commits, from the cache of a real DVC project. Its pipeline only copies an engine's record."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support.warm_python import warm_python

from enginewright.core.errors import EnginewrightError
from enginewright.engine.record import EngineRecord
from enginewright.measure.history import engines_of, parse_hashes

OLD, NEW = 1.0, 2.0
PIPELINE = """
stages:
  build:
    foreach: [fp32, int8]
    do:
      cmd: mkdir -p artifacts/engines/${item} && cp engine.json artifacts/engines/${item}
      deps: [engine.json]
      outs: ["artifacts/engines/${item}"]
"""


def call(project, *command):
    subprocess.run(command, cwd=project, check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(built, run, tmp_path_factory):
    """A project with two commits: its engine took one second to build in the first, and two in the second."""
    project = tmp_path_factory.mktemp("project")
    call(project, "git", "init", "-q")
    call(project, "git", "config", "user.name", "a")
    call(project, "git", "config", "user.email", "a@b")
    call(project, warm_python() / "dvc", "init", "-q")
    (project / "dvc.yaml").write_text(PIPELINE)
    for seconds in (OLD, NEW):
        record = EngineRecord.read(built / "engine.json").model_copy(update={"build_seconds": seconds})
        record.write(project / "engine.json")
        runs = [run(13.0, 4.4, precision=precision, engine=record.identity) for precision in ("fp32", "int8")]
        both = runs[0].model_copy(update={"precisions": tuple(one.precisions[0] for one in runs)})
        both.write(project / "reports" / "measurements.json")
        call(project, warm_python() / "dvc", "repro", "-q")
        call(project, "git", "add", "-A")
        call(project, "git", "commit", "-q", "-m", f"{seconds} seconds")
    return project


@pytest.fixture
def project(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


def build_seconds(place, precision="int8"):
    with engines_of(str(place)) as find:
        return EngineRecord.read(find(precision) / "engine.json").build_seconds


def good_run(folder):
    """Write a history in which the first commit was the good run."""
    for name in ("reports/measurements.json", "dvc.lock"):
        shown = subprocess.run(["git", "show", f"HEAD~1:{name}"], check=True, capture_output=True, text=True).stdout
        (folder / Path(name).name).write_text(shown)
    return (folder / "measurements.json").rename(folder / "good.json")


def test_an_earlier_engine_comes_from_the_cache_and_the_present_one_from_its_folder(project):
    assert build_seconds("HEAD~1") == OLD
    assert build_seconds("HEAD") == NEW
    assert build_seconds("reports") == NEW


def test_links_to_the_cache_are_removed_afterwards_and_the_projects_own_engine_stays(project):
    for place, stays in {"HEAD~1": False, "reports": True}.items():
        with engines_of(place) as find:
            folder = find("int8")
        assert folder.exists() == stays
    assert build_seconds("HEAD~1") == OLD, "the cache itself stays as it is"


def test_a_good_run_finds_its_engines_by_their_hashes(project, tmp_path):
    good = good_run(tmp_path)
    with pytest.raises(EnginewrightError, match=r"good\.json has no good-engines\.json beside it"):
        build_seconds(good)
    (tmp_path / "good-engines.json").write_text(json.dumps(parse_hashes((tmp_path / "dvc.lock").read_text(), "it")))
    assert build_seconds(good, "fp32") == OLD
    (tmp_path / "good-engines.json").write_text("[]")
    with pytest.raises(EnginewrightError, match=r"good-engines\.json is damaged"):
        build_seconds(good)


def test_an_engine_that_was_not_measured_there_is_refused(project, tmp_path):
    """This happens after a copy of reports/ only, or `git checkout` without `dvc checkout`."""
    elsewhere = shutil.copytree(project, tmp_path / "project")
    good_run(tmp_path).rename(elsewhere / "reports" / "measurements.json")
    with pytest.raises(EnginewrightError, match="is not the one that was measured there: `dvc checkout` brings"):
        build_seconds(elsewhere / "reports")


@pytest.mark.parametrize(
    ("place", "precision", "why"),
    [
        ("HEAD~7", "int8", "HEAD~7 is no file, no folder, and no git revision with reports"),
        ("HEAD", "fp16", "HEAD has no engine of fp16"),
        ("reports", "fp16", "fp16 is missing: run `dvc checkout` or `dvc repro` in that project"),
    ],
)
def test_a_missing_engine_is_one_sentence(project, place, precision, why):
    with pytest.raises(EnginewrightError, match=why):
        build_seconds(place, precision)


def test_an_engine_missing_from_the_cache_is_one_sentence(project, tmp_path, monkeypatch):
    """This is a clone on another machine."""
    elsewhere = shutil.copytree(project, tmp_path / "clone")
    shutil.rmtree(elsewhere / ".dvc" / "cache")
    monkeypatch.chdir(elsewhere)
    with pytest.raises(EnginewrightError, match=r"the engine of int8 that HEAD~1 had is not in DVC's cache here"):
        build_seconds("HEAD~1")


def test_outside_of_a_dvc_project_the_sentence_is_the_same(project, tmp_path, monkeypatch):
    good = good_run(tmp_path)
    (tmp_path / "good-engines.json").write_text('{"int8": "0123456789abcdef0123456789abcdef.dir"}')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EnginewrightError, match="is not in DVC's cache here"):
        build_seconds(good)


@pytest.mark.parametrize("lock", ["[", "a: 1", "stages: [build@int8]", "stages: {build@int8: {outs: []}}"])
def test_a_file_that_is_no_lock_is_one_sentence(lock):
    with pytest.raises(EnginewrightError, match="it is not a lock file of DVC"):
        parse_hashes(lock, "it")
