"""How fast the machine is while it races: a fixed piece of work, timed before each round.

A virtual machine's cores may be moved nearer to each other or further apart under way, or shared with others; a clock
may drop. That changes some contenders by a quarter and others hardly, so rounds at different paces are not of one kind.
"""

import math
import time
from collections.abc import Callable

import torch

ATTEMPTS = 3
HANDOVERS, SHARE = 20, 32768  # elements that PyTorch gives to a thread
LAUNCHES = 100
MATRIX, PRODUCTS = 2048, 20  # smaller ones take as long as their launch


def pace_of(device: str, threads: int) -> Callable[[], float]:
    """A call that returns the seconds of one unit of that work: the less, the better the pace."""
    return _gpu_pace() if device == "cuda" else _cpu_pace(threads)


def _cpu_pace(threads: int) -> Callable[[], float]:
    """Hardly any arithmetic, but all threads must start and meet again: what small layers spend their time on."""
    numbers = torch.zeros(SHARE * threads)
    return lambda: fastest(lambda: _seconds(lambda: numbers.add_(1.0), HANDOVERS))


def _gpu_pace() -> Callable[[], float]:
    """Of the host, which launches one operation after the other, and of the GPU, which multiplies matrices.

    Their geometric mean: a change of either by some share shows alike, however much faster one of them is.
    """
    host, gpu = launching(), multiplying()
    return lambda: math.sqrt(fastest(host) * fastest(gpu))


def launching() -> Callable[[], float]:
    """A call that returns the seconds that the host takes to launch an operation."""
    number = torch.zeros(1, device="cuda")

    def once() -> float:
        torch.cuda.synchronize()  # a launch that finds the queue full waits
        return _seconds(lambda: number.add_(1.0), LAUNCHES)

    return once


def multiplying() -> Callable[[], float]:
    """A call that returns the seconds that the GPU takes for a product of matrices, by its own clock."""
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
    """Of a few readings: what else happens at one of them is not the machine's pace."""
    return min(read() for _ in range(ATTEMPTS))


def _seconds(work: Callable[[], object], times: int) -> float:
    work()
    started = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - started) / times
