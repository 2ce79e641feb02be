"""The runtimes, and every fact about them that several rooms need."""

import importlib.util
from dataclasses import dataclass
from typing import Literal

RuntimeName = Literal["openvino", "onnxruntime", "tensorrt", "tensorrt_rtx"]


@dataclass(frozen=True)
class RuntimeFacts:
    title: str
    install: str  # the command that installs it
    distributions: tuple[str, ...]  # the packages that contain it, the usual one first
    trtexec: str | None = None  # TensorRT and TensorRT for RTX only: the command that builds and times a plan
    builds_without_gpu: bool = False  # though its engines need one: for the GPUs that params.yaml lists

    @property
    def is_tensorrt(self) -> bool:
        """Tell whether it is one of NVIDIA's two libraries, which share one API and take strongly typed graphs."""
        return self.trtexec is not None


RUNTIMES: dict[str, RuntimeFacts] = {
    "openvino": RuntimeFacts("OpenVINO", "pip install openvino", ("openvino",)),
    "onnxruntime": RuntimeFacts(
        "ONNX Runtime",
        "pip install onnxruntime-gpu (or onnxruntime, for the CPU alone)",
        ("onnxruntime-gpu", "onnxruntime"),
    ),
    "tensorrt": RuntimeFacts(
        "TensorRT", "pip install -e '.[tensorrt]'", ("tensorrt-cu13", "tensorrt-cu12", "tensorrt"), trtexec="trtexec"
    ),
    "tensorrt_rtx": RuntimeFacts(
        "TensorRT for RTX",
        "pip install -e '.[tensorrt-rtx]'",
        ("tensorrt_rtx",),
        trtexec="tensorrt_rtx",
        builds_without_gpu=True,
    ),
}


def not_installed(name: str) -> str | None:
    """Return how to install a runtime whose library is missing, or None. A library has the name of its runtime."""
    if importlib.util.find_spec(name) is None:
        return f"{RUNTIMES[name].title} is not installed: {RUNTIMES[name].install}"
    return None
