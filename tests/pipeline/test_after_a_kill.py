"""The files that a killed DVC leaves half written are mended; those that are whole, or in use, are left alone."""

import json
import os
import subprocess
import sys

import pytest
from dvc.lock import make_lock
from support.paths import ROOT

from enginewright.pipeline.recovery import TMP, mend_after_a_kill

LOCK = (ROOT / "machine/dvc.lock").read_text()
REMOVED = " was cut off when DVC was killed, and is removed"
RESTORED = REMOVED + ": results are restored from the cache"
CONFLICT = f"<<<<<<< HEAD\n{LOCK}=======\n{LOCK}>>>>>>> other\n"


def user(cmd, pid=0):
    """Return what DVC writes of who uses a path. 0 is in the place of this process."""
    return json.dumps({"write": {"/artifacts": {"pid": pid, "cmd": cmd}}})


@pytest.fixture
def gone():
    ended = subprocess.Popen(["true"])
    ended.wait()
    return ended.pid


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dvc.lock", LOCK, None),
        ("dvc.lock", "", RESTORED),
        ("dvc.lock", LOCK[: LOCK.index("md5")], RESTORED),
        ("machine/dvc.lock", LOCK[:40] + "\n  [", RESTORED),
        ("dvc.lock", CONFLICT, None),
        (TMP / "rwlock", "", REMOVED),
        (TMP / "rwlock", '{"read": {"', REMOVED),
        (TMP / "rwlock", '{"read": {"/a": 3}}', REMOVED),
        (TMP / "rwlock", "{}", None),
        (TMP / "rwlock", user("dvc THESE ARGUMENTS"), None),
        (TMP / "rwlock", user("dvc repro"), " named a DVC that was killed, and is removed"),
    ],
)
def test_a_file_that_is_not_whole_is_removed(tmp_path, name, text, said):
    for folder in (TMP, "machine"):
        (tmp_path / folder).mkdir(parents=True)
    text = text.replace('"pid": 0', f'"pid": {os.getpid()}').replace("THESE ARGUMENTS", " ".join(sys.orig_argv[1:]))
    (tmp_path / name).write_text(text)
    assert mend_after_a_kill(tmp_path) == ([f"{name}{said}"] if said else [])
    assert (tmp_path / name).exists() == (said is None)


def test_a_user_that_is_gone_is_removed(tmp_path, gone):
    (tmp_path / TMP).mkdir(parents=True)
    (tmp_path / TMP / "rwlock").write_text(user("dvc repro", gone))
    assert mend_after_a_kill(tmp_path) == [".dvc/tmp/rwlock named a DVC that was killed, and is removed"]


def test_what_another_dvc_is_writing_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr("dvc.lock.DEFAULT_TIMEOUT", 0)
    (tmp_path / TMP).mkdir(parents=True)
    for name in ("dvc.lock", TMP / "rwlock"):
        (tmp_path / name).write_text("")
    with make_lock(str(tmp_path / TMP / "lock")), make_lock(str(tmp_path / TMP / "rwlock.lock")):
        assert mend_after_a_kill(tmp_path) == []


def test_a_project_that_never_ran_has_nothing_to_mend(tmp_path):
    assert mend_after_a_kill(tmp_path) == []
