"""One race at a time has the machine."""

import fcntl
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from enginewright.measure.timing import NAME, whole_machine

HOLD = """
from enginewright.measure.timing import whole_machine
with whole_machine("first"):
    print("holds", flush=True)
    input()
"""


@pytest.fixture
def lock(tmp_path, monkeypatch):
    """A lock of its own, since other tests time engines meanwhile."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / NAME


def race():
    with whole_machine("benchmark, int8"):
        pass


def holder():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, "-c", HOLD], **pipes)


@pytest.mark.parametrize("ends", [lambda first: first.stdin.close(), lambda first: first.kill()])
def test_the_second_race_waits_until_the_first_ends_however_it_ends(lock, capsys, ends):
    with holder() as first:
        assert first.stdout.readline() == b"holds\n"
        second = threading.Thread(target=race)
        second.start()
        second.join(0.3)
        assert second.is_alive()
        ends(first)
        second.join()
    other = f"process {first.pid} in {Path.cwd()}"
    said = f"benchmark, int8 waits until {other} has timed its engines on this machine\n"
    assert capsys.readouterr().err == said


def test_what_another_user_wrote_into_the_file_controls_no_terminal(lock, capsys):
    lock.write_text("\x1b[2J")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        second = threading.Thread(target=race)
        second.start()
        second.join(0.1)
    second.join()
    assert capsys.readouterr().err.startswith(r"benchmark, int8 waits until \x1b[2J has timed")


def test_the_file_is_for_all_users(lock):
    before = os.umask(0o077)
    with whole_machine("first"):
        os.umask(before)
    assert lock.stat().st_mode & 0o777 == 0o666
    with whole_machine("again"):
        assert lock.read_text() == f"process {os.getpid()} in {Path.cwd()}"


def test_a_link_is_not_followed(lock, tmp_path):
    lock.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="Too many levels"), whole_machine("first"):
        pass
