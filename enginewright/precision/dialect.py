"""The form in which the compiler of a runtime takes a quantized graph."""

from typing import Literal

from enginewright.core.facts import ADDS_EXACTLY, PRECISIONS, RUNTIMES
from enginewright.core.files import Record
from enginewright.core.params.precisions import Rest

ARM = "asimd"


class Dialect(Record):
    """All that the stage convert must know of the machine. Machines of one dialect share their graphs."""

    rest: Rest
    largest_weight: int  # of int8: less than all where products of any two bytes cannot be added
    compiler: Literal["tensorrt", "cpu", "cuda"]  # TensorRT, or ONNX Runtime or OpenVINO on such a device
    exact_sums: bool  # a sum takes what a Conv makes for it alone before that is rounded
    by_channel: bool = False  # depthwise convolutions in int8 take a scale for each channel that they read


def dialect_of(runtime: str, device: str, instruction_sets: str, varies: bool = True) -> Dialect:
    """Return the dialect of a runtime on a device, for inputs of which a size varies, or none does.

    TensorRT runs unquantized nodes exactly as they are typed, and is slow in float32, in which a CPU is fastest.

    An x86 CPU without VNNI adds two products of bytes in 16 bits, which overflow: a Gemm of normal numbers was off by
    6 to 10 % in OpenVINO and ONNX Runtime alike. Weights of 7 bits leave room for any two products. Where both factors
    are activations, the product stays in floating point, which is as fast there.

    OpenVINO and TensorRT add to a Conv while its numbers are exact; OpenVINO only if a size varies, or else the sum has
    a kernel of its own. ONNX Runtime has none that adds on a CPU, and computes the Conv in floating point. On Arm,
    OpenVINO was not tried.
    """
    found = set(instruction_sets.split())
    overflows = device == "cpu" and ADDS_EXACTLY.isdisjoint(found)
    return Dialect(
        rest="fp16" if RUNTIMES[runtime].is_tensorrt else "fp32",
        largest_weight=64 if overflows else PRECISIONS["int8"].largest,
        compiler="tensorrt" if RUNTIMES[runtime].is_tensorrt else "cpu" if device == "cpu" else "cuda",
        by_channel=runtime == "openvino",
        exact_sums=device != "cpu" or (runtime == "openvino" and varies and ARM not in found),
    )
