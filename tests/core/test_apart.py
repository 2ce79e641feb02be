"""Functions run in processes of their own, with real processes."""

import os
import signal
import threading
import time

import pytest
from support.errors import error_of

from enginery.core.apart import run_apart
from enginery.core.errors import EngineryError
from enginery.quantization.calibration.cache import read_cache


def test_a_result_and_an_error_come_back(tmp_path):
    empty = tmp_path / "nothing"
    empty.touch()
    assert run_apart("the sum", sum, [1, 2]) == 3
    with pytest.raises(EngineryError, match="nothing is not a TensorRT calibration cache"):
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
    late = "import time; time.sleep(4); open('late', 'w')"
    timer, started = threading.Timer(2, os.kill, [os.getpid(), signal.SIGINT]), time.monotonic()
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_apart("the work", exec, f"import os; os.chdir({str(tmp_path)!r}); {late}")
    finally:
        timer.cancel()  # it would end pytest
    assert time.monotonic() - started < 4
    time.sleep(3)
    assert not list(tmp_path.iterdir())
