"""The runtimes behind one protocol. Each has a module of its own, the only one that imports its library."""

from functools import cache

from enginery.core.runtimes import RuntimeName
from enginery.engine.runtimes.protocol import Runtime


@cache
def load_runtime(name: RuntimeName | str) -> Runtime:
    """Import a runtime where it is used: its library takes a second, or may be missing."""
    match name:
        case "openvino":
            from enginery.engine.runtimes.openvino import OpenVINO

            return OpenVINO()
        case "onnxruntime":
            from enginery.engine.runtimes.onnxruntime import ONNXRuntime

            return ONNXRuntime()
        case _:
            from enginery.engine.runtimes.tensorrt import TensorRT

            return TensorRT(name)
