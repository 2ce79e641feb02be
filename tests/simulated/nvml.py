# ruff: noqa: N802, N803 - names and parameters are NVIDIA's
"""`pynvml` on a machine with one GPU; its constants and errors are the real ones."""

import functools
import os
from collections.abc import Callable
from types import SimpleNamespace

from simulated import cudart, failing, real_module
from simulated.surface import same_signature

real = real_module("pynvml")
NAME, DRIVER = cudart.DEVICE_NAME, "590.10"
CONTEXT_BYTES = 300 << 20  # what a process takes before it allocates anything
CLOCKS = {real.NVML_CLOCK_GRAPHICS: 2400, real.NVML_CLOCK_SM: 2400, real.NVML_CLOCK_MEM: 9000}
MILLIWATTS = 120_000
_GPU = SimpleNamespace()
_state = {"ready": False}


def __getattr__(name: str):
    if name.startswith("nvml") and callable(getattr(real, name)) and not isinstance(getattr(real, name), type):
        raise AttributeError(f"the simulation lacks {name}: add it to tests/simulated/nvml.py")
    return getattr(real, name)


def _simulates(function: Callable) -> Callable:
    """Make a function refuse to answer before nvmlInit, and about other GPUs."""

    @functools.wraps(function)
    def call(*arguments: object, **named: object):
        if not _state["ready"]:
            raise real.NVMLError(real.NVML_ERROR_UNINITIALIZED)
        if "handle" in function.__code__.co_varnames and _GPU not in (*arguments, *named.values()):
            raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
        return function(*arguments, **named)

    return same_signature(real)(call)


@same_signature(real)
def nvmlInit():
    if failing("no_device") or failing("no_nvml"):
        raise real.NVMLError(real.NVML_ERROR_LIBRARY_NOT_FOUND)
    _state["ready"] = True


@_simulates
def nvmlShutdown():
    _state["ready"] = False


@_simulates
def nvmlDeviceGetCount():
    return 1


@_simulates
def nvmlDeviceGetHandleByIndex(index):
    if index:
        raise real.NVMLError(real.NVML_ERROR_INVALID_ARGUMENT)
    return _GPU


@_simulates
def nvmlDeviceGetHandleByPciBusId(pciBusId):
    if pciBusId not in (cudart.BUS_ADDRESS, cudart.BUS_ADDRESS.decode()):
        raise real.NVMLError(real.NVML_ERROR_NOT_FOUND)
    return _GPU


@_simulates
def nvmlDeviceGetName(handle):
    return NAME


@_simulates
def nvmlDeviceGetCudaComputeCapability(handle):
    return cudart.capability()


@_simulates
def nvmlSystemGetDriverVersion():
    return DRIVER


@_simulates
def nvmlSystemGetCudaDriverVersion():
    return cudart.cudaDriverGetVersion()[1]


@_simulates
def nvmlSystemGetCudaDriverVersion_v2():
    return cudart.cudaDriverGetVersion()[1]


@_simulates
def nvmlDeviceGetClockInfo(handle, type):
    return CLOCKS[type]


@_simulates
def nvmlDeviceGetMaxClockInfo(handle, type):
    return CLOCKS[type]


@_simulates
def nvmlDeviceGetPowerUsage(handle):
    return MILLIWATTS


@_simulates
def nvmlDeviceGetTemperature(handle, sensor):
    return 55


@_simulates
def nvmlDeviceGetCurrentClocksEventReasons(handle):
    return real.nvmlClocksEventReasonSwPowerCap if failing("throttled") else real.nvmlClocksEventReasonGpuIdle


@_simulates
def nvmlDeviceGetMemoryInfo(handle, version=None):
    total = cudart.cudaMemGetInfo()[2]
    used = min(CONTEXT_BYTES + cudart.device_bytes(), total)
    return SimpleNamespace(total=total, used=used, free=total - used)


@_simulates
def nvmlDeviceGetComputeRunningProcesses(handle):
    if failing("hidden_processes"):
        return []
    return [SimpleNamespace(pid=os.getpid(), usedGpuMemory=CONTEXT_BYTES + cudart.device_bytes())]
