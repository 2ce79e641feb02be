"""A few seconds of what `make torture` does for many minutes: damaged and hostile files end in a sentence."""

import subprocess
import sys

from support.paths import ROOT


def test_no_file_ends_in_more_than_a_sentence():
    command = [sys.executable, "tests/torture/fuzz.py", "--light", "--count", "1", "--seed", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, last = done.stdout.splitlines()
    assert last.startswith("| all | ")
    assert last.endswith("| 0 | 0 | 0 | 0 |")
