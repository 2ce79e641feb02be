"""A folder for temporary files goes when its block ends, or else with the next one."""

import os
import subprocess
import sys
import time

import pytest
from support.paths import ROOT

from enginewright.core.files import IN_USE, NEW, scratch_folder

HOLDS = (
    "from enginewright.core.files import scratch_folder\n"
    "with scratch_folder() as one:\n    print(one, flush=True)\n    "
)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def hold(work):
    """Start a process that has a folder, and return it when it has it."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    started = subprocess.Popen([sys.executable, "-c", HOLDS + work], cwd=ROOT, text=True, **pipes)
    started.stdout.readline()
    return started


def test_it_goes_with_its_block(temporary):
    with scratch_folder() as folder:
        (folder / "inside").write_text("a file")
    with pytest.raises(ZeroDivisionError), scratch_folder():
        raise ZeroDivisionError
    assert not any(temporary.iterdir())


def test_what_a_killed_process_left_goes_with_the_next_and_what_is_in_use_stays(temporary):
    working, killed = hold("input()"), hold("input()")
    killed.kill()
    killed.communicate()
    assert len(list(temporary.iterdir())) == 2
    with scratch_folder():
        assert len(list(temporary.iterdir())) == 2  # its own, and that of the one at work
    working.communicate("\n")
    assert not any(temporary.iterdir())


def test_what_somebody_else_put_there_does_not_stop_it(temporary):
    """To open a pipe is to wait for who writes into it, and all users write into /tmp."""
    os.mkfifo(temporary / f"{IN_USE}pipe")
    with scratch_folder() as folder:
        assert folder.is_dir()


def test_what_was_left_before_it_was_locked_goes_later(temporary):
    for name, age in (("old", 3600), ("young", 0)):
        folder = temporary / f"{NEW}{name}"
        folder.mkdir()
        os.utime(folder, (time.time() - age,) * 2)
    with scratch_folder():
        assert [folder.name for folder in temporary.glob(f"{NEW}*")] == [f"{NEW}young"]
