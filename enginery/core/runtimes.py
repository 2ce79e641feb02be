"""The runtimes, and every fact about them that several rooms need."""

from dataclasses import dataclass
from typing import Literal

RuntimeName = Literal["openvino", "onnxruntime", "tensorrt", "tensorrt_rtx"]


@dataclass(frozen=True)
class RuntimeFacts:
    title: str
    install: str  # the command that installs it
    distributions: tuple[str, ...]  # the packages that bring it, the usual one first
    trtexec: str | None = None  # of NVIDIA's two: the command that builds and times a plan

    @property
    def is_tensorrt(self) -> bool:
        """Whether it is one of NVIDIA's two libraries, which share one API and take strongly typed graphs."""
        return self.trtexec is not None


RUNTIMES: dict[str, RuntimeFacts] = {
    "openvino": RuntimeFacts("OpenVINO", "pip install openvino", ("openvino",)),
    "onnxruntime": RuntimeFacts(
        "ONNX Runtime",
        "pip install onnxruntime-gpu (or onnxruntime, for the CPU alone)",
        ("onnxruntime-gpu", "onnxruntime"),
    ),
    "tensorrt": RuntimeFacts(
        "TensorRT", "pip install -e '.[tensorrt]'", ("tensorrt-cu13", "tensorrt"), trtexec="trtexec"
    ),
    "tensorrt_rtx": RuntimeFacts(
        "TensorRT for RTX", "pip install -e '.[tensorrt-rtx]'", ("tensorrt_rtx",), trtexec="tensorrt_rtx"
    ),
}
