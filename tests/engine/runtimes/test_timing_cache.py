import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.paths import ROOT

from enginewright.engine.runtimes.tensorrt_library import (
    locked,
    read_timing_cache,
    timing_cache_path,
    write_timing_cache,
)

GPU = ("NVIDIA H200", "9.0", "580.65.06", "tensorrt-11.4.0.106")
APPEND = """
import sys, time
from pathlib import Path
from enginewright.engine.runtimes.tensorrt_library import locked, read_timing_cache, write_timing_cache
path, mark = Path(sys.argv[1]), sys.argv[2].encode()
print("ready", flush=True)
for _ in range(25):
    with locked(path):
        known = read_timing_cache(path)
        time.sleep(0.002)
        write_timing_cache(path, known + mark)
"""
KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
from enginewright.core import files
from enginewright.engine.runtimes.tensorrt_library import locked, write_timing_cache
files._to_disk = lambda path: os.kill(os.getpid(), signal.SIGKILL)
with locked(Path(sys.argv[1])):
    write_timing_cache(Path(sys.argv[1]), b"half")
"""


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Keep the tests away from the user's own cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    return tmp_path / "xdg"


def start(program, *arguments, stdout=subprocess.DEVNULL):
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=stdout, text=True)


def test_it_lies_in_the_users_cache_folder(home):
    assert timing_cache_path(*GPU).parent == home / "enginewright" / "timing"


@pytest.mark.parametrize("setting", [None, "", "relative/folder"])
def test_without_an_absolute_setting_the_cache_folder_is_dot_cache(monkeypatch, tmp_path, setting):
    if setting is None:
        monkeypatch.delenv("XDG_CACHE_HOME")
    else:
        monkeypatch.setenv("XDG_CACHE_HOME", setting)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert timing_cache_path(*GPU).parent == tmp_path / ".cache" / "enginewright" / "timing"


@pytest.mark.parametrize("position", range(len(GPU)), ids=["GPU", "capability", "driver", "version"])
def test_another_gpu_driver_or_version_has_a_file_of_its_own(position):
    other = list(GPU)
    other[position] += "1"
    assert timing_cache_path(*other) != timing_cache_path(*GPU)
    assert timing_cache_path(*GPU) == timing_cache_path(*GPU)


@pytest.mark.parametrize("name", ["NVIDIA H200 / SXM", "../../etc", "Quadro® RTX\n4000", "a\\b:c*?", "x" * 60])
def test_odd_characters_stay_within_one_file_name(home, name):
    path = timing_cache_path(name, *GPU[1:])
    assert path.parent == home / "enginewright" / "timing"
    assert re.fullmatch(r"[A-Za-z0-9._-]+\.timings", path.name)
    with locked(path):
        write_timing_cache(path, b"timings")
    assert read_timing_cache(path) == b"timings"


def test_the_lock_does_not_share_the_name_of_another_cache():
    path, other = timing_cache_path(*GPU), timing_cache_path(*GPU[:3], "tensorrt-11.4.0.107")
    with locked(path), locked(other):  # with a single lock this would never return
        write_timing_cache(path, b"one")
        write_timing_cache(other, b"other")
    assert (read_timing_cache(path), read_timing_cache(other)) == (b"one", b"other")


def test_a_cache_that_is_not_there_yet_is_empty():
    assert read_timing_cache(timing_cache_path(*GPU)) == b""


def test_two_processes_that_add_to_it_lose_nothing():
    path = timing_cache_path(*GPU)
    children = [start(APPEND, path, mark) for mark in "ab"]
    assert [child.wait(60) for child in children] == [0, 0]
    assert sorted(read_timing_cache(path)) == sorted(b"a" * 25 + b"b" * 25)


def test_a_second_process_waits_until_the_first_is_done():
    path = timing_cache_path(*GPU)
    with locked(path):
        child = start(APPEND, path, "a", stdout=subprocess.PIPE)
        assert child.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.3)
        assert not path.exists()
    with child:
        assert child.wait(60) == 0
    assert read_timing_cache(path) == b"a" * 25


def test_a_writer_that_is_killed_leaves_the_earlier_cache_and_no_lock():
    path = timing_cache_path(*GPU)
    with locked(path):
        write_timing_cache(path, b"earlier")
    assert start(KILLED_WHILE_WRITING, path).wait(60) == -signal.SIGKILL
    assert read_timing_cache(path) == b"earlier"
    with locked(path):  # the lock ended with the process that held it
        write_timing_cache(path, b"later")
    assert sorted(file.name for file in path.parent.iterdir()) == [path.with_suffix(".lock").name, path.name]


def test_a_damaged_cache_is_never_read_and_renamed_with_a_warning(capfd):
    path, random = timing_cache_path(*GPU), np.random.default_rng(0)
    with locked(path):
        write_timing_cache(path, random.bytes(2000))
    whole = path.read_bytes()
    damaged = [whole[:-1], whole[65:], b"", b"garbage"]
    for place, byte in zip(random.integers(0, len(whole), 500), random.integers(1, 256, 500), strict=True):
        damaged.append(whole[:place] + bytes([whole[place] ^ byte]) + whole[place + 1 :])
    for content in damaged:
        path.write_bytes(content)
        assert read_timing_cache(path) == b""
        aside = path.with_suffix(".damaged")
        assert aside.read_bytes() == content
        assert capfd.readouterr().err == (
            f"the timing cache {path} is damaged: moved to {aside.name}, a new one is begun\n"
        )
