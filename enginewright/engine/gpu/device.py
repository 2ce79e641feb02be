"""Find the GPU by CUDA alone: a container that may compute need not have NVIDIA's management library."""

from typing import NamedTuple

from enginewright.core.errors import EnginewrightError
from enginewright.engine.gpu.cuda import NO_GPU, describe_device, require_device, require_driver, supported_cuda
from enginewright.engine.gpu.nvml import driver_version


class Hardware(NamedTuple):
    device_name: str
    capability: str
    driver: str
    cuda: str


def find_gpu() -> Hardware | None:
    """Return the GPU that CUDA would use, or None: `why_no_gpu` says why."""
    if why_no_gpu():
        return None
    return Hardware(*describe_device(), driver=driver_version(), cuda=supported_cuda())


def why_no_gpu() -> str | None:
    """Return why no GPU can be used here, or None if one can."""
    try:
        require_driver()
        require_device()
    except ImportError:  # CUDA's bindings are installed on Linux alone
        return NO_GPU
    except EnginewrightError as error:
        return str(error)
    return None
