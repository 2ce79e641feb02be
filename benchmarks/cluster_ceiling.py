"""Measure what the machine itself gives: the work of `cluster.py` in independent processes, without Ray, each on a core
of its own. Nothing is sent or merged. What a cluster does not reach of it, Ray and Enginewright cost; what it does not
reach of so many times one process, shared cores, caches and memory cost.

    python benchmarks/cluster_ceiling.py --work calibrate --processes 4     # in the project's folder

It prints images per second, of all processes together, while all are at work.
"""

import argparse
import multiprocessing
import os
import sys
import time
from contextlib import ExitStack
from itertools import count
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from pathlib import Path

from cluster_work import measuring, parts_of, running

from enginewright.data.sample_set import AT_ONCE

SECONDS_TO_OPEN = 120.0  # after which others have failed
SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def cores_first() -> list[int]:
    """Return the processors that may be used: one of each core, and then those that share a core with them."""
    usable, turn, seen = sorted(os.sched_getaffinity(0)), dict[int, int](), dict[str, int]()
    for number in usable:
        path = Path(SIBLINGS.format(number))
        core = path.read_text() if path.exists() else str(number)
        turn[number] = seen[core] = seen.get(core, -1) + 1
    return sorted(usable, key=lambda number: (turn[number], number))


def images_per_second(name: str, precision: str, processes: int, seconds: float) -> float:
    fork = multiprocessing.get_context("fork")  # nothing has threads yet, and the imports are shared
    ready, rates = fork.Barrier(processes), fork.SimpleQueue()
    all_of_them = [
        fork.Process(target=_alone, args=(name, precision, core, seconds, ready, rates))
        for core in cores_first()[:processes]
    ]
    for each in all_of_them:
        each.start()
    for each in all_of_them:
        each.join()
    if any(each.exitcode for each in all_of_them):
        sys.exit("a process failed")
    return float(sum(rates.get() for _ in all_of_them))


def _alone(name: str, precision: str, core: int, seconds: float, ready: Barrier, rates: "SimpleQueue[float]") -> None:
    parts = parts_of(name, 4 * AT_ONCE)
    with ExitStack() as opened:
        works = (measuring(),) if name == "calibrate" else running(precision)
        doing = [opened.enter_context(work.open(threads=1)) for work in works]
        for do in doing:
            do(parts[0])  # the first call takes longer
        for thread in os.listdir("/proc/self/task"):  # not before: an engine fits machines of as many cores
            os.sched_setaffinity(int(thread), [core])
        ready.wait(SECONDS_TO_OPEN)
        started, took = time.perf_counter(), 0.0
        for done in count(1):
            for do in doing:
                do(parts[done % len(parts)])
            took = time.perf_counter() - started
            if took >= seconds:
                break
        rates.put(done * AT_ONCE / took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", choices=("calibrate", "validate"), required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--precision", default="int8")
    parser.add_argument("--seconds", type=float, default=8)
    chosen = parser.parse_args()
    print(images_per_second(chosen.work, chosen.precision, chosen.processes, chosen.seconds))


if __name__ == "__main__":
    main()
