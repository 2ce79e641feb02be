"""The runtimes behind one protocol, and which one this machine has. Each library is imported by one module alone."""

import platform
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from enginewright.core.cores import usable_cores
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES, RuntimeName
from enginewright.engine.gpu import NO_GPU, Hardware, find_gpu, why_no_gpu
from enginewright.engine.machine import Machine
from enginewright.engine.runtimes.runtime import Runtime

GPU_RUNTIMES: tuple[RuntimeName, ...] = ("tensorrt", "onnxruntime")  # for runtime: auto, the preferred one first
INSTRUCTION_SETS = (
    "avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16", "amx_int8",
    "asimd", "asimddp", "bf16", "i8mm", "sve",
)  # fmt: skip


@cache
def load_runtime(name: RuntimeName | str) -> Runtime:
    """Import a runtime where it is used: its library takes a second, or may be missing."""
    match name:
        case "openvino":
            from enginewright.engine.runtimes.openvino import OpenVINO

            return OpenVINO()
        case "onnxruntime":
            from enginewright.engine.runtimes.onnxruntime import ONNXRuntime

            return ONNXRuntime()
        case _:
            from enginewright.engine.runtimes.tensorrt import TensorRT

            return TensorRT(name)


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
        power=_power(),
    )


@cache
def _power() -> str:
    """Return how a Jetson is set, as far as its own two commands tell this user. What measures is a process of its own,
    so one answer is enough for each."""
    known = [command for command in (("nvpmodel", "-q"), ("jetson_clocks", "--show")) if shutil.which(command[0])]
    said = "".join(subprocess.run(command, capture_output=True, text=True).stdout for command in known)
    mode, clocks = (re.search(each, said) for each in (r"Power Mode: (.+)", r"GPU MinFreq=(\d+) MaxFreq=(\d+)"))
    fixed = [f"clocks {'fixed' if clocks[1] == clocks[2] else 'not fixed'}"] if clocks else []
    return ", ".join([*([f"power mode {mode[1].strip()}"] if mode else []), *fixed])


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
    """Choose TensorRT or else ONNX Runtime's CUDA provider where there is a GPU, and OpenVINO on any other machine, or
    ONNX Runtime where that alone is installed."""
    if not (has_gpu := find_gpu() is not None):
        _say_why_gpu_is_not_used("runtime: auto goes on without the GPU")
    for name in GPU_RUNTIMES if has_gpu else ():
        runtime = load_runtime(name)
        missing = runtime.missing()
        if not missing and runtime.device() == "cuda":
            return name
        print(f"runtime: auto does not take {name}: {missing or 'it has no access to the GPU'}", file=sys.stderr)
    only_onnxruntime = load_runtime("openvino").missing() and not load_runtime("onnxruntime").missing()
    return "onnxruntime" if only_onnxruntime else "openvino"
