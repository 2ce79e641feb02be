"""A few seconds of what `make torture` does for many minutes: damaged and hostile files end in a sentence."""

import subprocess
import sys

import pytest
from support.paths import ROOT


def test_no_file_ends_in_more_than_a_sentence():
    command = [sys.executable, "tests/torture/fuzz.py", "--light", "--count", "1", "--seed", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith("| all | ")
    assert last.endswith("| 0 | 0 | 0 | 0 |")


@pytest.mark.parametrize(
    ("work", "how"),
    [
        ("all(True for _ in iter(int, 1))", "hang"),  # takes the second of CPU that it may
        ("os.kill(os.getpid(), signal.SIGALRM)", "hang"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "crash told"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "crash told"),
    ],
)
def test_a_limit_that_is_reached_is_a_hang_and_no_crash(work, how):
    program = (
        "import os, pathlib, signal, sys; sys.path[:0] = ['tests', 'tests/torture']; import forked; "
        f"print(forked.run(lambda: {work}, pathlib.Path(), 2**30, 0).how)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{how}\n", "")
