"""How fast the machine is while it races: a fixed piece of work, timed before each round.

A virtual machine's cores may be moved nearer to each other or further apart under way, a clock may drop. That changes
some contenders by a quarter and others hardly, so rounds at different paces are not of one kind.
"""

import time
from collections.abc import Callable

import torch

HANDOVERS, ATTEMPTS = 20, 3
SHARE = 32768  # elements that PyTorch gives to a thread
MATRIX, PRODUCTS = 2048, 20  # smaller ones take as long as their launch


def pace_of(device: str, threads: int) -> Callable[[], float]:
    """A call that returns the seconds of one unit of that work: the less, the better the pace."""
    return _gpu_pace() if device == "cuda" else _cpu_pace(threads)


def _cpu_pace(threads: int) -> Callable[[], float]:
    """Hardly any arithmetic, but all threads must start and meet again: what small layers spend their time on."""
    numbers = torch.zeros(SHARE * threads)

    def read() -> float:
        return min(_seconds(lambda: numbers.add_(1.0)) for _ in range(ATTEMPTS))

    return read


def _gpu_pace() -> Callable[[], float]:
    """Products of matrices by the device's clock: they see the GPU's clock, and others that use it."""
    matrix = torch.rand(MATRIX, MATRIX, device="cuda")
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def once() -> float:
        before.record()
        for _ in range(PRODUCTS):
            torch.mm(matrix, matrix)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after)) / 1000 / PRODUCTS

    return lambda: min(once() for _ in range(ATTEMPTS))


def _seconds(work: Callable[[], object]) -> float:
    work()
    started = time.perf_counter()
    for _ in range(HANDOVERS):
        work()
    return (time.perf_counter() - started) / HANDOVERS
