"""The GPU: what running an engine needs of CUDA, through NVIDIA's own bindings, and what NVIDIA's management library
alone knows: the driver, the memory that a process takes, clocks and power. Importing this needs no driver, and nothing
depends on that library, which some containers do not have."""

import ctypes
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pynvml
from numpy.typing import NDArray
from typing_extensions import Self

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record

NO_GPU = "this machine shows no NVIDIA GPU"
NO_DEVICE = "CUDA sees no NVIDIA GPU: look at nvidia-smi and at CUDA_VISIBLE_DEVICES"
LEAST_MEMORY = 64 << 20  # in bytes: with 20 MB, TensorRT 10.6 crashed on an H200 where it opened a plan
POISON = 0xFF  # bytes of NaN in every float type, so that an element which is never written is seen
SECONDS_BETWEEN_SAMPLES = 0.2
THROTTLE_REASONS = {  # why a GPU runs below its clocks. Idling is left out, since it does not disturb a timing.
    "power cap": "nvmlClocksEventReasonSwPowerCap",
    "thermal": "nvmlClocksEventReasonSwThermalSlowdown",
    "hardware thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "hardware power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
}


class Stream:
    """A queue of work for the GPU, which runs in order while the host goes on, until `synchronize` waits for it."""

    def __init__(self) -> None:
        self._stream = _call("cudaStreamCreateWithFlags", _cudart().cudaStreamNonBlocking)
        self.handle = int(self._stream)

    def copy_in(self, source: "Pinned", target: "Buffer", size: int) -> None:
        kind = _cudart().cudaMemcpyKind.cudaMemcpyHostToDevice
        _call("cudaMemcpyAsync", target.address, source.address, size, kind, self._stream)

    def copy_out(self, source: "Buffer", target: "Pinned", size: int) -> None:
        kind = _cudart().cudaMemcpyKind.cudaMemcpyDeviceToHost
        _call("cudaMemcpyAsync", target.address, source.address, size, kind, self._stream)

    def poison(self, target: "Buffer", size: int) -> None:
        _call("cudaMemsetAsync", target.address, POISON, size, self._stream)

    def mark(self, event: "Event") -> None:
        """Let the event happen when the work so far is done."""
        _call("cudaEventRecord", event.handle, self._stream)

    def synchronize(self) -> None:
        _call("cudaStreamSynchronize", self._stream)

    def capture(self, work: Callable[[], None]) -> "Graph":
        """Record what `work` puts on this stream, instead of doing it."""
        mode = _cudart().cudaStreamCaptureMode.cudaStreamCaptureModeThreadLocal
        _call("cudaStreamBeginCapture", self._stream, mode)
        try:
            work()
            return Graph(_call("cudaStreamEndCapture", self._stream))
        except BaseException:
            _cudart().cudaStreamEndCapture(self._stream)  # fails as well, but makes the stream usable again
            _cudart().cudaGetLastError()  # forgets the error, which a library would take for that of its next kernel
            raise

    def launch(self, graph: "Graph") -> None:
        _call("cudaGraphLaunch", graph.executable, self._stream)

    def close(self) -> None:
        _release("cudaStreamDestroy", self._stream)


class Event:
    """A moment in the work of a stream, by the device's clock."""

    def __init__(self) -> None:
        self.handle = _call("cudaEventCreate")

    def seconds_after(self, earlier: "Event") -> float:
        return float(_call("cudaEventElapsedTime", earlier.handle, self.handle)) / 1000

    def close(self) -> None:
        _release("cudaEventDestroy", self.handle)


class Graph:
    """Recorded work that is launched as one."""

    def __init__(self, captured: Any) -> None:
        try:
            self.executable = _call("cudaGraphInstantiate", captured, 0)
        finally:
            _release("cudaGraphDestroy", captured)

    def close(self) -> None:
        _release("cudaGraphExecDestroy", self.executable)


class Buffer:
    def __init__(self, size: int) -> None:
        self.address = int(_call("cudaMalloc", size))

    def close(self) -> None:
        _release("cudaFree", self.address)


class Pinned:
    """Memory on the host that never moves, so that copies from and to it need not wait."""

    def __init__(self, size: int) -> None:
        self._size, self.address = size, int(_call("cudaHostAlloc", size, 0))

    @classmethod
    def holding(cls, array: NDArray[np.generic]) -> Self:
        pinned = cls(array.nbytes)
        pinned.view(array.dtype, array.shape)[...] = array
        return pinned

    def view(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[np.generic]:
        """Return the beginning of the memory as an array, which is valid until `close`."""
        content = memoryview((ctypes.c_ubyte * self._size).from_address(self.address))
        flat: NDArray[np.generic] = np.frombuffer(content, dtype, count=int(np.prod(shape)))
        return flat.reshape(shape)

    def close(self) -> None:
        _release("cudaFreeHost", self.address)


def require_gpu() -> None:
    """Refuse to go on without a driver, with one that is older than the CUDA of the installed libraries, or where CUDA
    sees no GPU: CUDA_VISIBLE_DEVICES may hide all of them."""
    supported, needed = _call("cudaDriverGetVersion"), _call("cudaRuntimeGetVersion")
    if not supported:
        raise EnginewrightError(NO_GPU)
    if supported // 1000 < needed // 1000:
        raise EnginewrightError(_too_old(supported, needed))
    if not _call("cudaGetDeviceCount"):
        raise EnginewrightError(NO_DEVICE)


def free_memory() -> int:
    return int(_call("cudaMemGetInfo"))


def require_memory(what: str) -> None:
    """Refuse to begin with less than a library needs to say by itself that memory does not suffice."""
    if (free := free_memory()) < LEAST_MEMORY:
        raise EnginewrightError(
            f"the GPU has {free / 1e6:.0f} MB of free memory, too little before {what}: end other programs that use it"
        )


def _call(name: str, *arguments: Any) -> Any:
    status, *results = getattr(_cudart(), name)(*arguments)
    if int(status):
        raise EnginewrightError(_sentence(name, status))
    return results[0] if results else None


def _release(name: str, resource: Any) -> None:
    """Free a resource and never raise: after a fault every call fails, and the user must read of the fault."""
    getattr(_cudart(), name)(resource)


def _sentence(name: str, status: Any) -> str:
    error = type(status)
    if status == error.cudaErrorMemoryAllocation:
        state, free, total = _cudart().cudaMemGetInfo()
        have = "it is full" if int(state) else f"{free / 1e6:.0f} of its {total / 1e6:.0f} MB are free"
        return f"the GPU is out of memory ({have}): lower build.profile.batch.max, or end other programs that use it"
    if status == error.cudaErrorInsufficientDriver:
        return _too_old(_cudart().cudaDriverGetVersion()[1], _cudart().cudaRuntimeGetVersion()[1])
    if status == error.cudaErrorSystemDriverMismatch:
        return "the NVIDIA driver was updated, and an older one is still loaded: restart the machine"
    return NO_DEVICE if status == error.cudaErrorNoDevice else f"CUDA failed in {name}: {status.name}"


def _too_old(supported: int, needed: int) -> str:
    has = f"goes up to CUDA {_written(supported)}" if supported else "is not installed"
    return f"the NVIDIA driver {has}, and CUDA {needed // 1000} is needed: install a driver of that generation"


def _written(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"


def _cudart() -> Any:
    from cuda.bindings import runtime

    return runtime


class Hardware(NamedTuple):
    """A CPU or GPU, as artifacts/machine.json describes it. The name is that of the slice if a GPU is split (MIG)."""

    device_name: str
    capability: str
    driver: str
    cuda: str  # the version that the driver goes up to


def find_gpu() -> Hardware | None:
    """Return the GPU that CUDA would use, or None: `why_no_gpu` says why."""
    if why_no_gpu():
        return None
    found = _call("cudaGetDeviceProperties", 0)
    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:  # this library is missing, or does not answer
        driver = "unknown"
    name = bytes(found.name).split(b"\0")[0].decode()
    return Hardware(name, f"{found.major}.{found.minor}", driver, _written(_call("cudaDriverGetVersion")))


def why_no_gpu() -> str | None:
    """Return why no GPU can be used here, or None if one can."""
    try:
        require_gpu()
    except ImportError:  # CUDA's bindings are installed on Linux alone
        return NO_GPU
    except EnginewrightError as error:
        return str(error)
    return None


class GpuConditions(Record):
    """The state of a GPU while it was timed, over all samples, and the share of them in which throttling was seen."""

    samples: int
    clock_low: int
    clock_median: int
    clock_high: int
    memory_clock: int
    power_median: float
    power_high: float
    temperature_high: int
    throttled: dict[str, float]


class GpuSample(NamedTuple):
    """Clocks in MHz, power in watts, temperature in degrees Celsius."""

    seconds: float
    clock: int
    memory_clock: int
    power: float
    temperature: int
    throttled: str


def process_megabytes() -> float | None:
    """Return how much this process holds on the GPU, or None where the driver hides it, as in some containers."""
    try:
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(nvml_device())
    except pynvml.NVMLError:
        return None
    held = [process.usedGpuMemory for process in processes if process.pid == os.getpid()]
    return float(held[0]) / 1e6 if held and held[0] else None


class GpuSampler:
    """Samples the GPU from a thread while it is entered as a context."""

    def __init__(self) -> None:
        self.samples: list[GpuSample] = []
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def conditions(self) -> GpuConditions | None:
        """Sum up the samples. There are none, and the result is None, where a part of a GPU (MIG, vGPU) hides them."""
        if not self.samples:
            return None
        _, clocks, memory_clocks, power, temperatures, throttled = zip(*self.samples, strict=True)
        reasons = Counter(reason for several in throttled for reason in several.split("+") if reason)
        return GpuConditions(
            samples=len(self.samples),
            clock_low=min(clocks),
            clock_median=round(median(clocks)),
            clock_high=max(clocks),
            memory_clock=max(memory_clocks),
            power_median=round(median(power), 1),
            power_high=round(max(power), 1),
            temperature_high=max(temperatures),
            throttled={reason: round(count / len(self.samples), 3) for reason, count in reasons.items()},
        )

    def _watch(self) -> None:
        try:
            gpu = nvml_device()
            while not self._done.wait(SECONDS_BETWEEN_SAMPLES):
                reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
                throttled = [name for name, flag in THROTTLE_REASONS.items() if reasons & getattr(pynvml, flag)]
                self.samples.append(
                    GpuSample(
                        seconds=round(time.perf_counter() - self._started, 3),
                        clock=pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
                        memory_clock=pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
                        power=pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                        temperature=pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
                        throttled="+".join(throttled),
                    )
                )
        except pynvml.NVMLError as error:
            print(f"the GPU's clocks and power are not sampled: {error}", file=sys.stderr)


def nvml_device() -> Any:
    """Return NVML's handle of the GPU that CUDA uses: CUDA_VISIBLE_DEVICES renumbers CUDA's GPUs and not NVML's."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByPciBusId(bus_address())


def bus_address() -> str:
    return ctypes.create_string_buffer(_call("cudaDeviceGetPCIBusId", 20, 0)).value.decode()
