import os
import threading

import pytest

from enginewright.core.cores import AHEAD, in_parallel
from enginewright.core.errors import EnginewrightError


def test_results_come_in_order_and_only_a_few_ahead():
    started = []

    def work(item):
        started.append(item)
        return item * 10

    taken = in_parallel(work, range(1000))
    assert [next(taken) for _ in range(3)] == [0, 10, 20]
    assert len(started) < 3 + 2 * AHEAD * len(os.sched_getaffinity(0))
    assert list(taken) == [item * 10 for item in range(3, 1000)]


def test_an_error_in_a_worker_is_raised_and_stops_the_rest():
    started = []

    def work(item):
        started.append(item)
        raise EnginewrightError("broken")

    with pytest.raises(EnginewrightError, match="broken"):
        list(in_parallel(work, range(1000)))
    assert len(started) < 500


def test_one_of_its_threads_may_free_what_nobody_takes(monkeypatch):
    """After an error in whoever takes the results, any thread may be the one that collects the rest."""
    monkeypatch.setattr("enginewright.core.cores.working_threads", lambda: 2)
    taken, freed = threading.Event(), threading.Event()

    def work(item):
        if item == 3:
            taken.wait(10)
            results.close()
            freed.set()
        return item

    results = in_parallel(work, range(1000))
    assert next(results) == 0
    taken.set()
    assert freed.wait(10)
    assert list(results) == []
