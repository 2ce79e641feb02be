"""DVC still has the defects that enginewright/pipeline/recovery.py mends. A test that fails here says that DVC has
mended one itself: remove that part of the module."""

import importlib.metadata
import os

import pytest
from dvc.exceptions import DvcException, ReproductionError
from dvc.repo import Repo
from dvc.rwlock import RWLockFileCorruptedError, rwlock

from enginewright.pipeline.recovery import DVC


@pytest.fixture
def repo(tmp_path, monkeypatch):
    """A repository with a stage that has run."""
    monkeypatch.chdir(tmp_path)
    with Repo.init(str(tmp_path), no_scm=True) as repo:
        (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: echo made > made, outs: [made]}}")
        repo.reproduce()
        yield repo


def test_the_private_modules_are_those_of_this_version():
    """Read the imports of the module, of cli/project/merge.py and measure/earlier_engines.py, and the tests below
    again for another one."""
    assert importlib.metadata.version("dvc") == DVC


@pytest.mark.parametrize("end", ["", "schema: '2.0'\nstages:\n  make:\n    c"], ids=["at once", "in a stage"])
def test_a_lock_file_that_is_cut_off_stops_dvc(repo, tmp_path, end):
    (tmp_path / "dvc.lock").write_text(end)
    with pytest.raises(Exception, match=r"dvc\.lock|NoneType"):
        repo.reproduce()


def test_a_list_of_locked_paths_that_is_cut_off_stops_dvc(repo, tmp_path):
    (tmp_path / ".dvc/tmp/rwlock").write_text("")
    with pytest.raises(ReproductionError) as caught:
        repo.reproduce(force=True)
    assert isinstance(caught.value.__cause__, RWLockFileCorruptedError)


def test_dvc_takes_any_process_of_the_same_number_for_one_that_was_killed(repo, tmp_path):
    made, other = str(tmp_path / "made"), os.getppid()
    (tmp_path / ".dvc/tmp/rwlock").write_text(f'{{"write": {{"{made}": {{"pid": {other}, "cmd": "dvc repro"}}}}}}')
    with (
        pytest.raises(DvcException, match="dvc repro"),
        rwlock(str(tmp_path / ".dvc/tmp"), repo.fs, "x", [], [made], False),
    ):
        pass
