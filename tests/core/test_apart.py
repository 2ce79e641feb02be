"""Functions run in processes of their own, with real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest
from support.errors import error_of
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.process import run_apart
from enginewright.precision.calibration.cache import read_cache


def test_a_result_and_an_error_come_back(tmp_path):
    empty = tmp_path / "nothing"
    empty.touch()
    assert run_apart("the sum", sum, [1, 2]) == 3
    with pytest.raises(EnginewrightError, match="nothing is not a TensorRT calibration cache"):
        run_apart("the work", read_cache, empty)


def test_a_crash_a_mistake_and_too_long_a_time_are_sentences(capfd):
    ended = error_of(run_apart, "the work", os.kill, 0, signal.SIGKILL)
    assert ended.startswith("the work failed: it was ended from outside (Killed)")
    assert error_of(run_apart, "the work", divmod, 1, 0, quiet=True).startswith("the work failed: ZeroDivisionError: ")
    assert error_of(run_apart, "the work", divmod, 1, 0) == "the work failed: exit code 1"
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert error_of(run_apart, "the work", time.sleep, 60, longest=1) == "the work took more than 1 s"


# The interrupt comes as soon as the other process works, which says so by a file with its number.
INTERRUPTED = """
import os, signal, sys, threading, time
from pathlib import Path
from enginewright.core.process import run_apart
begun = Path(sys.argv[1])
def interrupt():
    while not (begun.exists() and begun.read_text()):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
{}
work = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
run_apart("the work", exec, work.replace("sys.argv[1]", repr(sys.argv[1])))
"""
BLOCKED = "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])"


def interrupted(begun, before):
    """Return how the process ended, after which the one that it started is gone."""
    command = [sys.executable, "-c", INTERRUPTED.format(before), begun]
    done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=120)
    with pytest.raises(ProcessLookupError):
        os.kill(int(begun.read_text()), 0)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    return done.returncode


def test_an_interrupt_ends_the_process_at_once(tmp_path):
    assert interrupted(tmp_path / "begun", "") == -signal.SIGINT


def test_an_interrupt_that_another_thread_takes_ends_the_process_too(tmp_path):
    """The main thread takes no signal here, as it may happen where libraries have threads of their own."""
    interrupted(tmp_path / "begun", BLOCKED)
