"""Find the GPU by CUDA, and ask NVIDIA's management library what CUDA does not know: the driver, the memory that a
process takes of the GPU, its clocks and power. Nothing depends on that library: some containers do not have it."""

import os
import sys
import threading
import time
from collections import Counter
from statistics import median
from typing import Any, NamedTuple, Self

import pynvml

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import Record
from enginewright.engine.gpu.cuda import NO_GPU, bus_address, describe_device, require_gpu

SECONDS_BETWEEN_SAMPLES = 0.2
THROTTLE_REASONS = {  # why a GPU runs below its clocks. Idling is left out, since it does not disturb a timing.
    "power cap": "nvmlClocksEventReasonSwPowerCap",
    "thermal": "nvmlClocksEventReasonSwThermalSlowdown",
    "hardware thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "hardware power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
}


class Hardware(NamedTuple):
    device_name: str
    capability: str
    driver: str
    cuda: str


def find_gpu() -> Hardware | None:
    """Return the GPU that CUDA would use, or None: `why_no_gpu` says why."""
    if why_no_gpu():
        return None
    name, capability, cuda = describe_device()
    try:
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:  # this library is missing, or does not answer
        driver = "unknown"
    return Hardware(name, capability, driver, cuda)


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
        pynvml.nvmlInit()
        processes = pynvml.nvmlDeviceGetComputeRunningProcesses(_handle())
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
        clocks, power = [sample.clock for sample in self.samples], [sample.power for sample in self.samples]
        throttled = Counter(reason for sample in self.samples for reason in sample.throttled.split("+") if reason)
        return GpuConditions(
            samples=len(self.samples),
            clock_low=min(clocks),
            clock_median=round(median(clocks)),
            clock_high=max(clocks),
            memory_clock=max(sample.memory_clock for sample in self.samples),
            power_median=round(median(power), 1),
            power_high=round(max(power), 1),
            temperature_high=max(sample.temperature for sample in self.samples),
            throttled={reason: round(count / len(self.samples), 3) for reason, count in throttled.items()},
        )

    def _watch(self) -> None:
        try:
            pynvml.nvmlInit()
            gpu = _handle()
            while not self._done.wait(SECONDS_BETWEEN_SAMPLES):
                reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu)
                throttled = [name for name, flag in THROTTLE_REASONS.items() if reasons & getattr(pynvml, flag)]
                sample = GpuSample(
                    seconds=round(time.perf_counter() - self._started, 3),
                    clock=pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
                    memory_clock=pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_MEM),
                    power=pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
                    temperature=pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
                    throttled="+".join(throttled),
                )
                self.samples.append(sample)
        except pynvml.NVMLError as error:
            print(f"the GPU's clocks and power are not sampled: {error}", file=sys.stderr)


def _handle() -> Any:
    return pynvml.nvmlDeviceGetHandleByPciBusId(bus_address())
