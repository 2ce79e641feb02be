"""The GPU is found by CUDA alone. A container that may compute need not have NVIDIA's management library."""

from types import SimpleNamespace

import pynvml
import pytest
from cuda.bindings import runtime

from enginewright.engine import gpu
from enginewright.engine.gpu import NO_DEVICE, NO_GPU, find_gpu, why_no_gpu

FINE, ERROR = runtime.cudaError_t.cudaSuccess, runtime.cudaError_t
BLACKWELL = SimpleNamespace(name=b"NVIDIA GeForce RTX 5090".ljust(256, b"\0"), major=12, minor=0)
ANSWERS = {
    "cudaDriverGetVersion": (FINE, 13030),
    "cudaRuntimeGetVersion": (FINE, 13020),
    "cudaGetDeviceCount": (FINE, 1),
    "cudaGetDeviceProperties": (FINE, BLACKWELL),
}


@pytest.fixture
def cuda_answers(monkeypatch):
    """Let CUDA answer as on a machine with a GPU, but for the given answers."""

    def answer(**changed):
        calls = {name: lambda *_, given=given: given for name, given in (ANSWERS | changed).items()}
        monkeypatch.setattr(gpu, "_cudart", lambda: SimpleNamespace(**calls))

    return answer


def nvml_that(monkeypatch, code):
    def refuse():
        raise pynvml.NVMLError(code)

    monkeypatch.setattr(pynvml, "nvmlInit", refuse if code else lambda: None)
    monkeypatch.setattr(pynvml, "nvmlSystemGetDriverVersion", lambda: "610.43.02")


@pytest.mark.parametrize(
    ("code", "driver"),
    [
        (None, "610.43.02"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "unknown"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "unknown"),
    ],
    ids=["there", "missing", "silent"],
)
def test_only_the_drivers_version_depends_on_the_management_library(cuda_answers, monkeypatch, code, driver):
    cuda_answers()
    nvml_that(monkeypatch, code)
    assert find_gpu() == ("NVIDIA GeForce RTX 5090", "12.0", driver, "13.3")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"cudaDriverGetVersion": (FINE, 0)}, NO_GPU),
        ({"cudaDriverGetVersion": (FINE, 12080)}, "the NVIDIA driver goes up to CUDA 12.8, and CUDA 13 is needed"),
        ({"cudaGetDeviceCount": (FINE, 0)}, NO_DEVICE),
        ({"cudaGetDeviceCount": (ERROR.cudaErrorNoDevice, None)}, NO_DEVICE),
        ({"cudaGetDeviceCount": (ERROR.cudaErrorSystemDriverMismatch, None)}, "the NVIDIA driver was updated"),
    ],
    ids=["no driver", "old driver", "hidden", "none", "driver updated"],
)
def test_without_a_gpu_that_can_be_used_there_is_a_reason(cuda_answers, changed, why):
    cuda_answers(**changed)
    assert find_gpu() is None
    assert why_no_gpu().startswith(why)


def test_cudas_bindings_may_be_missing_where_there_is_no_linux(monkeypatch):
    def absent():
        raise ImportError("no module named cuda")

    monkeypatch.setattr(gpu, "_cudart", absent)
    assert (find_gpu(), why_no_gpu()) == (None, NO_GPU)
