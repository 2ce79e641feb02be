"""Describe this machine, and choose its runtime."""

import platform
import sys
from pathlib import Path

from enginewright.core.cores import usable_cores
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES, RuntimeName
from enginewright.engine.gpu.cuda import NO_GPU
from enginewright.engine.gpu.nvml import Hardware, find_gpu, why_no_gpu
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes import load_runtime

GPU_RUNTIMES: tuple[RuntimeName, ...] = ("tensorrt", "onnxruntime")  # for runtime: auto, the preferred one first
INSTRUCTION_SETS = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "amx_int8",
    "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip


def describe_machine(asked: str) -> Machine:
    """Return all that an engine and a timing depend on here. If the runtime is `auto`, this is where it is chosen."""
    name = asked if asked != "auto" else _preferred()
    runtime = load_runtime(name)
    if missing := runtime.missing():
        raise EnginewrightError(f"runtime: {name} is asked for in params.yaml, but {missing}")
    device = runtime.device()
    hardware = find_cpu() if device == "cpu" else _gpu_for(name)
    return Machine(
        runtime=name,
        runtime_version=runtime.version(),
        device=device,
        **hardware._asdict(),
        cores=usable_cores(),
        operating_system=f"{platform.system()} {platform.machine()}",
    )


def _gpu_for(runtime: str) -> Hardware:
    if gpu := find_gpu():
        return gpu
    facts = RUNTIMES[runtime]
    if facts.builds_without_gpu:
        _say_why_gpu_is_not_used(f"runtime: {runtime} builds without the GPU")
        return Hardware(device_name="a machine without a GPU", capability="", driver="", cuda="")
    advice = "; runtime: tensorrt_rtx builds without one" if facts.is_tensorrt else ""
    raise EnginewrightError(f"runtime: {runtime} needs an NVIDIA GPU, but {why_no_gpu()}{advice}")


def _say_why_gpu_is_not_used(consequence: str) -> None:
    """Print the reason, unless there is simply no GPU."""
    if (reason := why_no_gpu()) != NO_GPU:
        print(f"{consequence}: {reason}", file=sys.stderr)


def find_cpu() -> Hardware:
    lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()]
    facts = {key.strip(): value.strip() for key, _, value in lines}
    name = facts.get("model name") or platform.processor() or platform.machine()
    known = set((facts.get("flags") or facts.get("Features") or "").split())
    return Hardware(name, " ".join(flag for flag in INSTRUCTION_SETS if flag in known), driver="", cuda="")


def _preferred() -> RuntimeName:
    """Choose TensorRT or else ONNX Runtime's CUDA provider where there is a GPU, and OpenVINO on any other machine."""
    if find_gpu() is None:
        _say_why_gpu_is_not_used("runtime: auto goes on without the GPU")
        return "openvino"
    for name in GPU_RUNTIMES:
        runtime = load_runtime(name)
        missing = runtime.missing()
        if not missing and runtime.device() == "cuda":
            return name
        print(f"runtime: auto does not take {name}: {missing or 'it has no access to the GPU'}", file=sys.stderr)
    return "openvino"
