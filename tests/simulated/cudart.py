# ruff: noqa: N802, N803 - names and parameters are NVIDIA's
"""`cuda.bindings.runtime` with host memory for device memory; its enumerations are the real ones.

A stream is a queue: its work is done when somebody waits for it, so that a forgotten wait is seen. One thread at a time
does work, of any stream, so that each stream's is done in order. Memory that no function here allocated is not
accepted, so that copies must use pinned memory. `allocated` counts what was not freed.
"""

import ctypes
import functools
import itertools
import os
import time
from collections.abc import Callable
from threading import RLock
from types import SimpleNamespace
from typing import NamedTuple

from simulated import failing, real_module
from simulated.surface import same_signature

real = real_module("cuda.bindings.runtime")
BUS_ADDRESS, DEVICE_NAME = b"0000:01:00.0", "Simulated GPU"
DRIVER_SUPPORTS = 13000
ADA = "8.9"  # the compute capability, unless SIMULATED_CAPABILITY says another
GARBAGE = 0xCD  # the content of fresh memory: nothing may rely on zeros


class _Block(NamedTuple):
    content: ctypes.Array
    size: int
    on_device: bool


class _Work:
    """Work on a stream. A graph puts the same on it again and again."""

    def __init__(self, do: Callable[[], None]) -> None:
        self._do, self.scratch = do, getattr(do, "scratch", None)  # the address of memory that it computes in
        self.number, self.done = next(_numbers), False

    def finish(self) -> None:
        """Do it once: another stream that waits for it may have done so."""
        if not self.done:
            self.done = True
            self._do()


class _Stream:
    def __init__(self) -> None:
        self.queue: list[_Work] = []
        self.waited_for: set[_Work] = set()  # what other streams do before its next work
        self.captured: list[Callable[[], None]] | None = None
        self.spoiled = False


class _Event:
    recorded, seconds = False, None
    before: frozenset[_Work] = frozenset()  # the work that it follows


class _CudaError(Exception):
    def __init__(self, name: str) -> None:
        self.status = getattr(real.cudaError_t, name)


_handles, _numbers = itertools.count(4096, 16), itertools.count()
_memory: dict[int, _Block] = {}
_streams: dict[int, _Stream] = {}
_events: dict[int, _Event] = {}
_graphs: dict[int, list[Callable[[], None]]] = {}
_executables: dict[int, list[Callable[[], None]]] = {}
_last = {"error": real.cudaError_t.cudaSuccess}
_working = RLock()


def __getattr__(name: str):
    if name.startswith("cuda") and callable(getattr(real, name)) and not isinstance(getattr(real, name), type):
        raise AttributeError(f"the simulation lacks {name}: add it to tests/simulated/cudart.py")
    return getattr(real, name)


def allocated() -> dict[str, int]:
    """Count what was not freed, by kind."""
    blocks = list(_memory.values())
    held = {"device": sum(block.on_device for block in blocks), "host": sum(not block.on_device for block in blocks)}
    others = {"streams": _streams, "events": _events, "graphs": _graphs, "executables": _executables}
    return held | {name: len(things) for name, things in others.items()}


def forget() -> None:
    """Free everything, as the end of a process does."""
    for things in (_memory, _streams, _events, _graphs, _executables):
        things.clear()


def capability() -> tuple[int, int]:
    major, _, minor = (os.environ.get("SIMULATED_CAPABILITY") or ADA).partition(".")
    return int(major), int(minor)


def device_bytes() -> int:
    return sum(block.size for block in list(_memory.values()) if block.on_device)


def enqueue(stream: object, work: Callable[[], None]) -> None:
    """Put work on a stream, or into the graph that it is captured into. Two streams may not use memory at once."""
    queue, mine = _stream(stream), _Work(work)
    if queue.captured is not None:
        queue.captured.append(work)
        return
    others = (each for other in list(_streams.values()) if other is not queue for each in list(other.queue))
    if mine.scratch and any(each.scratch == mine.scratch and not each.done for each in set(others) - queue.waited_for):
        raise RuntimeError("two streams compute in the same device memory at once: undefined behavior")
    queue.queue.append(mine)


def is_capturing(stream: object) -> bool:
    return _stream(stream).captured is not None


def break_capture(stream: object) -> None:
    """Do what a capture does not allow, as a library's kernel may."""
    _stream(stream).spoiled = True
    _last["error"] = real.cudaError_t.cudaErrorStreamCaptureUnsupported


def unseen_error() -> str | None:
    """Return the error that a broken capture left, and that nobody asked for."""
    error = _last["error"]
    return error.name if int(error) else None


def require_memory(address: int, size: int, on_device: bool, status: str = "cudaErrorInvalidValue") -> None:
    for start, block in list(_memory.items()):
        if start <= address and address + size <= start + block.size and block.on_device == on_device:
            return
    raise _CudaError(status)


def is_on_device(address: int) -> bool:
    return any(start <= address < start + block.size for start, block in list(_memory.items()) if block.on_device)


def _simulates(results: int = 0) -> Callable[[Callable], Callable]:
    """Make a function answer like the real one: the status first, then the results."""

    def decorate(function: Callable) -> Callable:
        @functools.wraps(function)
        def call(*arguments: object, **named: object) -> tuple:
            try:
                if failing(function.__name__):
                    raise _CudaError("cudaErrorUnknown")
                if failing("no_device") and function.__name__ not in ("cudaDriverGetVersion", "cudaRuntimeGetVersion"):
                    raise _CudaError("cudaErrorNoDevice")
                answer = function(*arguments, **named)
            except _CudaError as failure:
                return (failure.status, *[None] * results)
            return (real.cudaError_t.cudaSuccess, *(answer if results > 1 else [answer] * results))

        return same_signature(real)(call)

    return decorate


@same_signature(real)
def cudaGetLastError():
    """Return the error of a broken capture, and forget it: errors of other calls are not kept here."""
    found, _last["error"] = _last["error"], real.cudaError_t.cudaSuccess
    return (found,)


@_simulates(1)
def cudaGetDeviceCount():
    return 1


@_simulates(1)
def cudaDriverGetVersion():
    if failing("no_driver"):
        return 0
    return 12080 if failing("old_driver") else DRIVER_SUPPORTS


@_simulates(1)
def cudaRuntimeGetVersion():
    return real.cudaRuntimeGetVersion()[1]


@_simulates(1)
def cudaGetDeviceProperties(device):
    major, minor = capability()
    return SimpleNamespace(name=DEVICE_NAME.encode().ljust(256, b"\0"), major=major, minor=minor)


@_simulates(1)
def cudaDeviceGetPCIBusId(length, device):
    return (BUS_ADDRESS + b"\0").ljust(length)


@_simulates(2)
def cudaMemGetInfo():
    return _total() - device_bytes(), _total()


@_simulates(1)
def cudaMalloc(size):
    _require_no_capture()
    if size > _total() - device_bytes():
        raise _CudaError("cudaErrorMemoryAllocation")
    return _allocate(size, on_device=True)


@_simulates(1)
def cudaHostAlloc(size, flags):
    _require_no_capture()
    if size > _total():
        raise _CudaError("cudaErrorMemoryAllocation")
    return _allocate(size, on_device=False)


@_simulates(1)
def cudaMallocHost(size):
    return cudaHostAlloc(size, 0)[1]


@_simulates()
def cudaFree(devPtr):
    _release(devPtr, on_device=True)


@_simulates()
def cudaFreeHost(ptr):
    _release(ptr, on_device=False)


@_simulates()
def cudaMemcpyAsync(dst, src, count, kind, stream):
    kinds = real.cudaMemcpyKind
    from_device = kind in (kinds.cudaMemcpyDeviceToHost, kinds.cudaMemcpyDeviceToDevice)
    to_device = kind in (kinds.cudaMemcpyHostToDevice, kinds.cudaMemcpyDeviceToDevice)

    def check(status: str) -> None:
        require_memory(src, count, from_device, status)
        require_memory(dst, count, to_device, status)

    def copy() -> None:
        check("cudaErrorIllegalAddress")  # the memory may have been freed since
        ctypes.memmove(dst, src, count)

    check("cudaErrorInvalidValue")
    enqueue(stream, copy)


@_simulates()
def cudaMemcpy(dst, src, count, kind):
    """Copy at once. The host's memory need not be pinned."""
    from_device = kind == real.cudaMemcpyKind.cudaMemcpyDeviceToHost
    require_memory(src if from_device else dst, count, True)
    ctypes.memmove(dst, src, count)


@_simulates()
def cudaMemsetAsync(devPtr, value, count, stream):
    def fill() -> None:
        require_memory(devPtr, count, True, "cudaErrorIllegalAddress")
        ctypes.memset(devPtr, value, count)

    require_memory(devPtr, count, on_device=True)
    enqueue(stream, fill)


@_simulates(1)
def cudaStreamCreateWithFlags(flags):
    return real.cudaStream_t(_add(_streams, _Stream()))


@_simulates()
def cudaStreamSynchronize(stream):
    _require_no_capture()
    _drain(_stream(stream))


@_simulates()
def cudaStreamDestroy(stream):
    _drain(_stream(stream))
    del _streams[int(stream)]


@_simulates(1)
def cudaEventCreate():
    return real.cudaEvent_t(_add(_events, _Event()))


@_simulates()
def cudaEventRecord(event, stream):
    found = _found(_events, event)
    if is_capturing(stream):
        return  # in a graph an event only orders the work

    def happen() -> None:
        found.seconds = time.perf_counter()

    found.recorded, found.seconds = True, None
    found.before = frozenset(_stream(stream).queue) | _stream(stream).waited_for
    enqueue(stream, happen)


@_simulates()
def cudaStreamWaitEvent(stream, event, flags):
    if is_capturing(stream):
        raise _CudaError("cudaErrorStreamCaptureIsolation")  # the event is of work outside of the graph
    found = _found(_events, event)
    if not found.recorded:
        return  # the CUDA Runtime API: the call then does nothing

    waited_for = found.before

    def wait() -> None:
        for work in sorted(waited_for, key=lambda work: work.number):
            work.finish()

    _stream(stream).waited_for = {work for work in _stream(stream).waited_for | waited_for if not work.done}
    enqueue(stream, wait)


@_simulates()
def cudaEventSynchronize(event):
    _found(_events, event)
    _drain_all()


@_simulates(1)
def cudaEventElapsedTime(start, end):
    first, last = _found(_events, start), _found(_events, end)
    if not (first.recorded and last.recorded):
        raise _CudaError("cudaErrorInvalidResourceHandle")
    if first.seconds is None or last.seconds is None:
        raise _CudaError("cudaErrorNotReady")
    return (last.seconds - first.seconds) * 1000


@_simulates()
def cudaEventDestroy(event):
    _found(_events, event)
    del _events[int(event)]


@_simulates()
def cudaStreamBeginCapture(stream, mode):
    if is_capturing(stream):
        raise _CudaError("cudaErrorIllegalState")
    _stream(stream).captured = []
    _stream(stream).spoiled = False


@_simulates(1)
def cudaStreamEndCapture(stream):
    capturing = _stream(stream)
    captured, capturing.captured = capturing.captured, None
    if captured is None:
        raise _CudaError("cudaErrorIllegalState")
    if capturing.spoiled:
        raise _CudaError("cudaErrorStreamCaptureInvalidated")
    return real.cudaGraph_t(_add(_graphs, captured))


@_simulates(1)
def cudaGraphInstantiate(graph, flags):
    return real.cudaGraphExec_t(_add(_executables, list(_found(_graphs, graph))))


@_simulates()
def cudaGraphLaunch(graphExec, stream):
    for work in _found(_executables, graphExec):
        enqueue(stream, work)


@_simulates()
def cudaGraphDestroy(graph):
    _found(_graphs, graph)
    del _graphs[int(graph)]


@_simulates()
def cudaGraphExecDestroy(graphExec):
    _found(_executables, graphExec)
    _drain_all()
    del _executables[int(graphExec)]


def _total() -> int:
    return int(os.environ.get("SIMULATED_MEMORY") or 2_000_000_000)


def _allocate(size: int, on_device: bool) -> int:
    content = (ctypes.c_ubyte * max(size, 1))()
    ctypes.memset(content, GARBAGE, size)
    _memory[ctypes.addressof(content)] = _Block(content, size, on_device)
    return ctypes.addressof(content)


def _release(address: int, on_device: bool) -> None:
    _require_no_capture()
    if address not in _memory or _memory[address].on_device != on_device:
        raise _CudaError("cudaErrorInvalidValue")
    _drain_all()  # a GPU, too, finishes first
    del _memory[address]


def _require_no_capture() -> None:
    """Refuse to allocate or to wait while this thread captures, and spoil the capture."""
    capturing = [stream for stream in _streams.values() if stream.captured is not None]
    for stream in capturing:
        stream.spoiled = True
    if capturing:
        raise _CudaError("cudaErrorStreamCaptureUnsupported")


def _drain(stream: _Stream) -> None:
    with _working:
        while stream.queue:
            stream.queue[0].finish()
            del stream.queue[0]


def _drain_all() -> None:
    for stream in list(_streams.values()):
        _drain(stream)


def _add(things: dict, thing: object) -> int:
    handle = next(_handles)
    things[handle] = thing
    return handle


def _found(things: dict, handle: object):
    if int(handle) not in things:
        raise _CudaError("cudaErrorInvalidResourceHandle")
    return things[int(handle)]


def _stream(handle: object) -> _Stream:
    return _found(_streams, handle)
