"""What NVIDIA's management library tells: which GPU this is, what a process takes of it, and how it fares."""

import os
import sys
import threading
import time
from collections import Counter
from statistics import median
from types import TracebackType
from typing import Any, NamedTuple, Self

import pynvml

from enginery.core.records import GpuConditions
from enginery.gpu.cuda import bus_address, has_device

SECONDS_BETWEEN_SAMPLES = 0.2
THROTTLE_REASONS = {  # why a GPU runs below its clocks, as far as it disturbs a timing: idling does not
    "power cap": "nvmlClocksEventReasonSwPowerCap",
    "thermal": "nvmlClocksEventReasonSwThermalSlowdown",
    "hardware thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "hardware power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
}


class Hardware(NamedTuple):
    name: str
    capability: str
    driver: str
    cuda: str


class Sample(NamedTuple):
    """Clocks in MHz, power in watts, temperature in degrees Celsius."""

    seconds: float
    clock: int
    memory_clock: int
    power: float
    temperature: int
    throttled: str


def find_gpu() -> Hardware | None:
    """The GPU that CUDA would use, or None."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    if not has_device():
        return None
    handle = _handle()
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
    return Hardware(
        name=pynvml.nvmlDeviceGetName(handle),
        capability=f"{major}.{minor}",
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
    )


def process_megabytes() -> float | None:
    """What this process holds on the GPU; None where the driver hides it, as it does in some containers."""
    pynvml.nvmlInit()
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(_handle()):
        if process.pid == os.getpid() and process.usedGpuMemory:
            return float(process.usedGpuMemory) / 1e6
    return None


class GpuSampler:
    """Samples the GPU from a thread of its own for as long as the block takes."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu, self._done, self._started = _handle(), threading.Event(), time.perf_counter()
        self.samples: list[Sample] = []
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def conditions(self) -> GpuConditions | None:
        """None where the GPU cannot be watched: a part of one (MIG, vGPU) hides some of it."""
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
            while not self._done.is_set():
                self.samples.append(self._sample())
                self._done.wait(SECONDS_BETWEEN_SAMPLES)
        except pynvml.NVMLError as error:
            print(f"the GPU's clocks and power are not sampled: {error}", file=sys.stderr)

    def _sample(self) -> Sample:
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._gpu)
        return Sample(
            seconds=round(time.perf_counter() - self._started, 3),
            clock=pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_SM),
            memory_clock=pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_MEM),
            power=pynvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000,
            temperature=pynvml.nvmlDeviceGetTemperature(self._gpu, pynvml.NVML_TEMPERATURE_GPU),
            throttled="+".join(name for name, flag in THROTTLE_REASONS.items() if reasons & getattr(pynvml, flag)),
        )


def _handle() -> Any:
    return pynvml.nvmlDeviceGetHandleByPciBusId(bus_address())
