"""Measure the machine pace: the time that a fixed piece of work takes before and after each round of a race. A host may
move a virtual machine's cores nearer to each other or further apart, or share them with others; a clock may drop. That
slows some contenders by a quarter and others hardly, so only rounds at the same pace are comparable."""

import math
import time
from collections.abc import Callable

import torch

ATTEMPTS = 3
HANDOVERS, ELEMENTS_PER_THREAD = 20, 32768  # PyTorch gives a thread no fewer elements
LAUNCHES = 100
MATRIX, PRODUCTS = 2048, 20  # a product of smaller matrices takes as long as its launch


def pace_meter(device: str, threads: int) -> Callable[[], float]:
    """Return a function that reads the machine pace: the seconds of one unit of the work, less on a faster machine. On
    a CPU, that is the handover of small jobs to all threads, which is what small layers spend their time on. On a GPU,
    a geometric mean shows a change of the host or of the GPU by the same share, whichever is the faster."""
    if device == "cuda":
        host, gpu = launch_timer(), product_timer()
        return lambda: math.sqrt(fastest(host) * fastest(gpu))
    numbers = torch.zeros(ELEMENTS_PER_THREAD * threads)
    return lambda: fastest(lambda: _seconds(lambda: numbers.add_(1.0), HANDOVERS))


def launch_timer() -> Callable[[], float]:
    """Return a function that measures the seconds that the host takes to launch an operation."""
    number = torch.zeros(1, device="cuda")

    def once() -> float:
        torch.cuda.synchronize()  # a launch into a full queue would wait
        return _seconds(lambda: number.add_(1.0), LAUNCHES)

    return once


def product_timer() -> Callable[[], float]:
    """Return a function that measures the seconds of a product of matrices on the GPU, by its own clock."""
    matrix = torch.rand(MATRIX, MATRIX, device="cuda")
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once() -> float:
        before.record()
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000 / PRODUCTS

    return once


def fastest(read: Callable[[], float]) -> float:
    """Return the fastest of a few readings: a short interruption makes one of them slower, not the machine."""
    return min(read() for _ in range(ATTEMPTS))


def _seconds(work: Callable[[], object], times: int) -> float:
    work()
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times
