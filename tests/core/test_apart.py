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


def test_an_interrupt_ends_the_process_at_once(tmp_path):
    """The process would write a file at its end."""
    late = f"import time; time.sleep(4); open({str(tmp_path / 'late')!r}, 'w')"
    interrupted = (
        "import os, signal, threading\nfrom enginewright.core.process import run_apart\n"
        "threading.Timer(2, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        f"run_apart('the work', exec, {late!r})"
    )
    done = subprocess.run([sys.executable, "-c", interrupted], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGINT
    assert done.stderr.endswith("KeyboardInterrupt\n")
    time.sleep(4)
    assert not list(tmp_path.iterdir())


def test_an_interrupt_that_another_thread_takes_ends_the_process_too():
    """The main thread takes no signal here, as it may happen where libraries have threads of their own."""
    interrupted = (
        "import os, signal, threading, time\nfrom enginewright.core.process import run_apart\n"
        "def interrupt():\n    time.sleep(2)\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt, daemon=True).start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"
        "run_apart('the work', exec, 'import time; time.sleep(60)')"
    )
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", interrupted], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert time.monotonic() - began < 20
