"""Say what TensorRT's messages mean, in a sentence and without the places in NVIDIA's sources."""

import re
from typing import Any

MORE_MEMORY = "lower build.profile.batch.max, or end other programs that use the GPU"
ADVICE = {  # by patterns of TensorRT's messages
    r"out ?of ?memory|insufficient memory": f"The GPU's memory does not suffice: {MORE_MEMORY}",
    r"insufficient workspace|Could not find any implementation": (
        f"TensorRT also says so when memory does not suffice: raise build.tensorrt.workspace_mb, {MORE_MEMORY}"
    ),
    r"has no runners that implement it": (
        "The library reads this operator and has no kernel for it: end the model before it, or take another runtime"
    ),
    r"libnvinfer_lean": (
        "A version-compatible plan contains that library, and not every package of TensorRT brings it: put it on the "
        "loader's path (LD_LIBRARY_PATH), or set build.tensorrt.version_compatible to false"
    ),
    r"TRT_(FP4|MXFP8)\w+.*Plugin not found": (
        "This version of TensorRT does not have this precision: install a later one, or delete its section of "
        "`precisions`"
    ),
    r"optimization profile|profile \d+ violate": "The limits are build.profile's",
    r"CHECK\((status == CUDA_SUCCESS|sm_vers_\.size\(\) == 1)\)": (
        "TensorRT for RTX says so where it builds without a GPU what needs one: build.tensorrt.weights: stripped and "
        "build.tensorrt.refit do"
    ),
}
LACKS_PRECISION = r"Cannot compile (for target|operation)|require hardware with \w+ support"
OTHER_GPUS = "Those GPUs cannot execute this precision: drop them from build.tensorrt.compute_capabilities"
NO_SUCH_PRECISION = "This GPU cannot execute this precision: delete its section of `precisions`, if you do not need it"
NOT_THE_CAUSE = "CUDA driver version is insufficient"  # follows real errors on a machine that builds without a GPU
SOURCE = re.compile(r"\s*\bIn \S+ at \S+:\d+|\[\w+\.cpp:[^]]*\] ")  # a place in NVIDIA's sources: no use to a user
MOST_CHARACTERS = 400


def with_advice(reason: str, is_rtx: bool, otherwise: str) -> str:
    """Return a reason of TensorRT's, and what to do about it."""
    known = ADVICE | {LACKS_PRECISION: OTHER_GPUS if is_rtx else NO_SUCH_PRECISION}
    found = [advice for words, advice in known.items() if re.search(words, reason, re.IGNORECASE)]
    advice = found[0] if found else otherwise
    return f"{reason.rstrip('.')}. {advice}" if advice else reason


def errors_of(parser: Any) -> str:
    return "; ".join(_sentence(parser.get_error(index)) for index in range(parser.num_errors))


def _sentence(error: Any) -> str:
    """Say in one line what the parser refuses, beginning with the node."""
    node = f"node {error.node_name()} ({error.node_operator()}): " if error.node_name() else ""
    if error.code().name == "UNSUPPORTED_NODE":  # the description itself may be a bare "false"
        node += "this operator is not supported: "
    return node + cause_in(" ".join(line for line in error.desc().splitlines() if NOT_THE_CAUSE not in line))


def cause_in(text: str) -> str:
    """Return a message without the places in NVIDIA's sources, in one line and not too long."""
    return " ".join(SOURCE.sub("", text).split())[:MOST_CHARACTERS]
