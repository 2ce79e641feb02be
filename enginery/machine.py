"""What this machine is, and which runtime it uses."""

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import NamedTuple

import pynvml

from enginery.core.errors import EngineryError
from enginery.core.params import RuntimeName
from enginery.core.records import Machine, Tools
from enginery.runtimes import load_runtime

GPU_RUNTIMES: tuple[RuntimeName, ...] = ("onnxruntime",)  # the preferred one first; TensorRT will lead
INSTRUCTION_SETS = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "amx_int8",
    "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip
TOOLS = (
    "numpy", "pillow", "scikit-learn", "torch", "torchvision", "onnx", "onnxscript", "onnxsim", "polygraphy",
    "onnxruntime-gpu", "onnxruntime", "nvidia-modelopt",
)  # fmt: skip


class Hardware(NamedTuple):
    name: str
    capability: str
    driver: str


def describe_machine(wanted: str) -> Machine:
    """Resolve the runtime, once, and name everything that an engine and a timing depend on."""
    gpu = find_gpu()
    name = wanted if wanted != "auto" else _preferred(gpu is not None)
    runtime = load_runtime(name)
    missing = runtime.missing()
    if missing:
        raise EngineryError(f"runtime: {name} is asked for in params.yaml, but {missing}")
    device = runtime.device()
    if device == "cuda" and gpu is None:
        raise EngineryError(f"runtime: {name} needs an NVIDIA GPU, and this machine shows none; try runtime: openvino")
    hardware = gpu if device == "cuda" and gpu else find_cpu()
    return Machine(
        runtime=name,
        runtime_version=runtime.version(),
        device=device,
        device_name=hardware.name,
        capability=hardware.capability,
        driver=hardware.driver,
        cores=len(os.sched_getaffinity(0)),
        operating_system=f"{platform.system()} {platform.machine()}",
    )


def describe_tools() -> Tools:
    installed = {tool: _version(tool) for tool in TOOLS}
    return Tools(versions={tool: version for tool, version in installed.items() if version})


def find_gpu() -> Hardware | None:
    """The first NVIDIA GPU, or None."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return Hardware(pynvml.nvmlDeviceGetName(handle), f"{major}.{minor}", pynvml.nvmlSystemGetDriverVersion())


def find_cpu() -> Hardware:
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name") or platform.processor() or platform.machine()
    known = set((facts.get("flags") or facts.get("Features") or "").split())
    return Hardware(name, " ".join(flag for flag in INSTRUCTION_SETS if flag in known), "")


def _preferred(has_gpu: bool) -> RuntimeName:
    """ONNX Runtime's CUDA provider where there is a GPU for it, OpenVINO on any other machine."""
    if has_gpu:
        for name in GPU_RUNTIMES:
            runtime = load_runtime(name)
            if not runtime.missing() and runtime.device() == "cuda":
                return name
    return "openvino"


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
