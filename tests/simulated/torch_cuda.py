"""PyTorch's CPU, taken for a GPU: as much of torch.cuda as racing an engine needs."""

import functools
import time
from unittest.mock import patch

import torch


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self._timing, self._seconds = enable_timing, None

    def record(self, stream: object = None) -> None:
        self._seconds = time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: all work is done by now."""

    def elapsed_time(self, end_event: "Event") -> float:
        if not (self._timing and end_event._timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._seconds is None or end_event._seconds is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._seconds - self._seconds) * 1000


class Stream:
    cuda_stream = 0

    def synchronize(self) -> None:
        """Do nothing: all work is done by now."""


def install() -> None:
    made = ["empty", "empty_like", "rand", "zeros"]
    for owner, names in {torch.Tensor: ["to"], torch.nn.Module: ["to"], torch: made}.items():
        for name in names:
            setattr(owner, name, _on_cpu(getattr(owner, name)))
    torch.mm = _small(torch.mm)
    torch.compile = _without_gpu(torch.compile)
    torch.Tensor.pin_memory = lambda self: self
    torch.cuda.Event = Event
    torch.cuda.current_stream = lambda device=None: Stream()
    torch.cuda.synchronize = lambda device=None: None
    torch.cuda.device_count = lambda: 1
    torch.cuda.is_available = lambda: True
    # PyTorch asks for these wherever is_available() is true.
    torch.cuda.get_rng_state = lambda device="cuda": torch.get_rng_state()
    torch.cuda.set_rng_state = lambda new_state, device="cuda": None


def _small(product):
    """Multiply a corner of the matrices: the whole product would take a CPU a minute."""
    return lambda left, right: product(left[:64, :64], right[:64, :64])


def _without_gpu(compiler):
    """Hide the simulated GPU while torch.compile works: it asks CUDA itself in too many places to simulate."""

    @functools.wraps(compiler)
    def compile_function(function=None, **options):
        if function is None:  # it decorates, with options
            return functools.partial(compile_function, **options)
        compiled = compiler(function, **options)

        def call(*arguments):
            with patch.object(torch.cuda, "is_available", lambda: False):
                return compiled(*arguments)

        return call

    return compile_function


def _on_cpu(function):
    @functools.wraps(function)
    def call(*arguments, **named):
        named.pop("pin_memory", None)
        return function(*map(_cpu, arguments), **{name: _cpu(value) for name, value in named.items()})

    return call


def _cpu(value):
    is_cuda = isinstance(value, str | torch.device) and str(value).startswith("cuda")
    return torch.device("cpu") if is_cuda else value
