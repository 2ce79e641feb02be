import subprocess
import sys
import time

import pytest

from enginewright.core import cores as module
from enginewright.core.cores import Usage, read_usage
from enginewright.measure.timing import contention_between


def test_others_took_the_busy_time_that_is_not_of_this_process(monkeypatch):
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda process: range(3) if process == 0 else ())
    before, after = Usage(0.0, 100.0, 5.0, 10.0, 1.0), Usage(2.0, 103.0, 5.1, 12.0, 1.5)
    found = contention_between(before, after)
    assert (found.cores, found.others, found.stolen, found.throttled) == (3, 0.5, 0.05, 0.25)


def test_a_coarse_clock_gives_no_negative_share():
    assert contention_between(Usage(0.0, 100.0, 0.0, 10.0, 0.0), Usage(1.0, 100.9, 0.0, 11.0, 0.0)).others == 0


def test_the_columns_of_proc_stat_are_read_for_the_usable_cores_only(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    each = ["cpu0 100 20 30 4000 500 6 7 80 0 0", "cpu3 1 2 3 4 5 6 7 8 0 0", "cpu30 9 9 9 9 9 9 9 9 0 0"]
    stat.write_text("\n".join(["cpu  110 31 42 4013 514 21 23 97 0 0", *each, "intr 5", ""]))
    monkeypatch.setattr(module, "STAT", stat)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 3})
    monkeypatch.setattr(module, "TICKS_PER_SECOND", 100)
    assert (read_usage().busy, read_usage().stolen) == (pytest.approx(1.82), pytest.approx(0.88))


def test_a_busy_program_beside_this_process_is_seen():
    program = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        before = read_usage()
        time.sleep(1)
        after = read_usage()
    finally:
        program.kill()
        program.wait()
    assert contention_between(before, after).others > 0.4
