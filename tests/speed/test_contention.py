import subprocess
import sys
import time

import pytest

from enginery.speed import contention as module
from enginery.speed.contention import Usage, contention, usage


def test_what_others_took_is_what_was_busy_but_not_our_own():
    before, after = Usage(0.0, 100.0, 5.0, 10.0, 1.0), Usage(2.0, 103.0, 5.1, 12.0, 1.5)
    found = contention(before, after)
    assert (found.others, found.stolen, found.throttled) == (0.5, 0.05, 0.25)


def test_a_clock_that_ticks_coarsely_gives_no_negative_share():
    assert contention(Usage(0.0, 100.0, 0.0, 10.0, 0.0), Usage(1.0, 100.9, 0.0, 11.0, 0.0)).others == 0


def test_a_line_of_the_kernel_is_read_in_its_order(monkeypatch, tmp_path):
    stat = tmp_path / "stat"
    each = ["cpu0 100 20 30 4000 500 6 7 80 0 0", "cpu3 1 2 3 4 5 6 7 8 0 0", "cpu30 9 9 9 9 9 9 9 9 0 0"]
    stat.write_text("\n".join(["cpu  110 31 42 4013 514 21 23 97 0 0", *each, "intr 5", ""]))
    monkeypatch.setattr(module, "STAT", stat)
    monkeypatch.setattr(module.os, "sched_getaffinity", lambda _: {0, 3})
    monkeypatch.setattr(module, "TICKS_PER_SECOND", 100)
    assert (usage().busy, usage().stolen) == (pytest.approx(1.82), pytest.approx(0.88)), "of the two that are ours"


def test_a_busy_neighbour_is_seen():
    """Really: a program that does nothing but work, beside one that sleeps."""
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.2)
        before = usage()
        time.sleep(1)
        after = usage()
    finally:
        neighbour.kill()
        neighbour.wait()
    assert contention(before, after).others > 0.4
